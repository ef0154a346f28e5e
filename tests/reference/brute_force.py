"""Oracles by brute force: plain torch, one backward pass a row, explicit matrices. Imports nothing of dnn2gp."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn


def call(module: nn.Module, inputs) -> Tensor:
    """The module's outputs, N × K, for inputs as its forward wants them."""
    if isinstance(inputs, Tensor):
        outputs = module(inputs)
    elif isinstance(inputs, dict):
        outputs = module(**inputs)
    else:
        outputs = module(*inputs)
    return outputs.reshape(len(outputs), -1)


def row(inputs, index: int):
    if isinstance(inputs, Tensor):
        return inputs[index : index + 1]
    if isinstance(inputs, dict):
        return {name: leaf[index : index + 1] for name, leaf in inputs.items()}
    return type(inputs)(leaf[index : index + 1] for leaf in inputs)


def length(inputs) -> int:
    if isinstance(inputs, Tensor):
        return len(inputs)
    return len(next(iter(inputs.values() if isinstance(inputs, dict) else inputs)))


def trainable(module: nn.Module) -> list[Tensor]:
    return [p for p in module.parameters() if p.requires_grad]


def flat_weights(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in trainable(module)])


def with_weights(module: nn.Module, weights: Tensor) -> nn.Module:
    """A copy of the module in eval mode with these flat weights."""
    module = copy.deepcopy(module).eval()
    start = 0
    with torch.no_grad():
        for p in trainable(module):
            p.copy_(weights[start : start + p.numel()].reshape(p.shape))
            start += p.numel()
    return module


def outputs(module: nn.Module, inputs) -> Tensor:
    return call(copy.deepcopy(module).eval(), inputs).detach()


def jacobian(module: nn.Module, inputs) -> Tensor:
    """N × K × P, one backward pass for each example and output."""
    module = copy.deepcopy(module).eval()
    weights = trainable(module)
    rows = []
    for index in range(length(inputs)):
        out = call(module, row(inputs, index))[0]
        for k in range(len(out)):
            grads = torch.autograd.grad(out[k], weights, retain_graph=True, allow_unused=True)
            parts = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, grads, strict=True)]
            rows.append(torch.cat([g.reshape(-1) for g in parts]))
    return torch.stack(rows).reshape(length(inputs), -1, len(rows[0]))


def residual_and_precision(loss: Callable[[Tensor, Tensor], Tensor], f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """r = ∇_f ℓ (N × K) and Λ = ∇²_ff ℓ (N × K × K) of a loss of one example, by autograd."""
    residual, precision = [], []
    for fi, yi in zip(f, y, strict=True):
        residual.append(torch.autograd.functional.jacobian(lambda a, y=yi: loss(a, y), fi))
        precision.append(torch.autograd.functional.hessian(lambda a, y=yi: loss(a, y), fi))
    return torch.stack(residual), torch.stack(precision)


def weight_posterior(J: Tensor, r: Tensor, Lam: Tensor, w: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the linear model: Σ̃ = (ΣJᵀΛJ + diag δ)⁻¹, μ = Σ̃ Σ Jᵀ(ΛJw − r)."""
    precision = torch.einsum("nkp,nkl,nlq->pq", J, Lam, J) + torch.diag(delta)
    natural = torch.einsum("nkp,nk->p", J, torch.einsum("nkl,nlp,p->nk", Lam, J, w) - r)
    covariance = torch.linalg.inv(precision)
    return covariance @ natural, covariance


# Losses of one example, written out from their definitions.


def gaussian(sigma) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda f, y: 0.5 * ((y - f) ** 2 / torch.as_tensor(sigma, dtype=f.dtype) ** 2).sum()


def bernoulli(f: Tensor, y: Tensor) -> Tensor:
    return (torch.log1p(torch.exp(f)) - y * f).sum()


def categorical(f: Tensor, y: Tensor) -> Tensor:
    return torch.logsumexp(f, 0) - f[y]


def poisson(f: Tensor, y: Tensor) -> Tensor:
    return (torch.exp(f) - y * f).sum()
