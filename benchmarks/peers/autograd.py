"""Kernel-vector products by automatic differentiation: one backward pass, then one forward-mode pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp, vmap


def kernel_matvec(module: nn.Module, inputs: Tensor, vectors: Tensor, at_once: int) -> Tensor:
    """J Jᵀ V for V of (N·K) × S, on the whole batch; `at_once` columns are batched by vmap, 1 is a plain loop."""
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    buffers = dict(module.named_buffers())

    def network(weights: dict[str, Tensor]) -> Tensor:
        return functional_call(module, (weights, buffers), inputs)

    with torch.no_grad():
        outputs, pull = vjp(network, weights)

        def product(column: Tensor) -> Tensor:
            # v → Jᵀ v → J Jᵀ v
            return jvp(network, (weights,), (pull(column.view_as(outputs))[0],))[1].flatten()

        if at_once == 1:
            return torch.stack([product(column) for column in vectors.unbind(1)], 1)
        return vmap(product, in_dims=1, out_dims=1, chunk_size=at_once)(vectors)
