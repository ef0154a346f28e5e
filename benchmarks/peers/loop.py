"""One backward pass for every example and output.

The loop proper passes one example through the network at a time. The paper's released code passes a batch of 128, and
each of its backward passes, though for one example, goes through the whole batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def rows(module: nn.Module, outputs: Tensor) -> Tensor:
    """J of one example with outputs K, K × P: K backward passes through all that the outputs were made with."""
    weights = list(module.parameters())
    return torch.stack(
        [
            torch.cat([part.flatten() for part in torch.autograd.grad(output, weights, retain_graph=True)])
            for output in outputs
        ]
    )


def trace_kernel(module: nn.Module, inputs: Tensor) -> Tensor:
    """Σ_k [J Jᵀ]_kk from the stacked Jacobian."""
    jacobian = torch.stack([rows(module, module(example.unsqueeze(0))[0]) for example in inputs]).flatten(1)
    return jacobian @ jacobian.T


def released_trace_kernel(module: nn.Module, batch: Tensor, count: int) -> Tensor:
    """The same of the first `count` examples of a batch, which goes through the network as a whole."""
    outputs = module(batch)
    jacobian = torch.stack([rows(module, outputs[index]) for index in range(count)]).flatten(1)
    return jacobian @ jacobian.T


def ggn_diagonal(module: nn.Module, inputs: Tensor) -> Tensor:
    """diag(Jᵀ Λ J) with Λ = diag(p) − p pᵀ, example by example."""
    total = torch.zeros(sum(weight.numel() for weight in module.parameters()), dtype=inputs.dtype)
    for example in inputs:
        total += _ggn_diagonal(module, module(example.unsqueeze(0))[0])
    return total


def released_ggn_diagonal(module: nn.Module, batch: Tensor, count: int) -> Tensor:
    """The same of the first `count` examples of a batch, which goes through the network as a whole."""
    outputs = module(batch)
    return torch.stack([_ggn_diagonal(module, outputs[index]) for index in range(count)]).sum(0)


def _ggn_diagonal(module: nn.Module, outputs: Tensor) -> Tensor:
    jacobian, p = rows(module, outputs), torch.softmax(outputs.detach(), -1)
    return ((torch.diag(p) - torch.outer(p, p)) @ jacobian * jacobian).sum(0)
