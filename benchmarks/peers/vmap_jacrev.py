"""The Jacobian of all examples by torch.func: vmap over jacrev, stored, then a matrix product."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap


def jacobian_parts(module: nn.Module, inputs: Tensor, chunk: int) -> Iterator[tuple[slice, Tensor]]:
    """J of `chunk` examples at a time, n × K × P."""
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    buffers = dict(module.named_buffers())

    def single(weights: dict[str, Tensor], example: Tensor) -> Tensor:
        return functional_call(module, (weights, buffers), example.unsqueeze(0)).squeeze(0)

    batched = vmap(jacrev(single), in_dims=(None, 0))
    with torch.no_grad():
        for start in range(0, len(inputs), chunk):
            part = slice(start, min(start + chunk, len(inputs)))
            yield part, torch.cat([each.flatten(2) for each in batched(weights, inputs[part]).values()], -1)


def jacobian(module: nn.Module, inputs: Tensor, chunk: int) -> Tensor:
    """J of all examples, N × K × P."""
    result = torch.empty(0)
    for part, rows in jacobian_parts(module, inputs, chunk):
        if len(rows) == len(inputs):
            return rows
        if part.start == 0:
            result = rows.new_empty(len(inputs), *rows.shape[1:])
        result[part] = rows
    return result


def full_kernel(module: nn.Module, inputs: Tensor, chunk: int) -> Tensor:
    """J Jᵀ, N × K × N × K."""
    rows = jacobian(module, inputs, chunk)
    flat = rows.flatten(0, 1)
    return (flat @ flat.T).view(*rows.shape[:2], *rows.shape[:2])


def trace_kernel(module: nn.Module, inputs: Tensor, chunk: int) -> Tensor:
    """Σ_k [J Jᵀ]_kk, N × N."""
    flat = jacobian(module, inputs, chunk).flatten(1)
    return flat @ flat.T


def ggn_diagonal(module: nn.Module, inputs: Tensor, chunk: int) -> Tensor:
    """diag(Jᵀ Λ J) with Λ = diag(p) − p pᵀ = S Sᵀ, S = diag(√p) − p √pᵀ, chunk by chunk."""
    total = torch.zeros(sum(weight.numel() for weight in module.parameters()), dtype=torch.float64)
    for part, rows in jacobian_parts(module, inputs, chunk):
        with torch.no_grad():
            p = torch.softmax(module(inputs[part]), -1)
        root = torch.diag_embed(p.sqrt()) - p.unsqueeze(2) * p.sqrt().unsqueeze(1)
        total += (root.mT @ rows).square().sum((0, 1))
    return total


def covariance(module: nn.Module, inputs: Tensor, variance: Tensor, chunk: int) -> Tensor:
    """J diag(v) Jᵀ of each example, N × K × K, chunk by chunk."""
    parts = []
    for _, rows in jacobian_parts(module, inputs, chunk):
        white = rows * variance.sqrt()
        parts.append(white @ white.mT)
    return torch.cat(parts)
