"""Oracles for likelihoods: torch.distributions, scipy and autograd, in float64, one formula each."""

from __future__ import annotations

import math
from collections.abc import Callable

import scipy.special
import scipy.stats
import torch
from torch import Tensor
from torch import distributions as td

LogProb = Callable[[Tensor, Tensor], Tensor]


def gaussian_log_prob(sigma: Tensor) -> LogProb:
    return lambda f, y: td.Normal(f, sigma.expand(f.shape), validate_args=False).log_prob(y).sum(-1)


def bernoulli_log_prob(f: Tensor, y: Tensor) -> Tensor:
    return td.Bernoulli(logits=f, validate_args=False).log_prob(y).sum(-1)


def categorical_log_prob(f: Tensor, y: Tensor) -> Tensor:
    return td.Categorical(logits=f, validate_args=False).log_prob(y)


def poisson_log_prob(f: Tensor, y: Tensor) -> Tensor:
    return td.Poisson(f.exp(), validate_args=False).log_prob(y).sum(-1)


def exponential_log_prob(f: Tensor, y: Tensor) -> Tensor:
    return td.Exponential((-f).exp(), validate_args=False).log_prob(y).sum(-1)


def scipy_gaussian_log_prob(f: Tensor, y: Tensor, sigma: Tensor) -> Tensor:
    return torch.from_numpy(scipy.stats.norm.logpdf(y.numpy(), f.numpy(), sigma.expand(f.shape).numpy()).sum(-1))


def scipy_bernoulli_log_prob(f: Tensor, y: Tensor) -> Tensor:
    return torch.from_numpy(scipy.stats.bernoulli.logpmf(y.numpy(), scipy.special.expit(f.numpy())).sum(-1))


def scipy_categorical_log_prob(f: Tensor, y: Tensor) -> Tensor:
    one_hot = torch.nn.functional.one_hot(y, f.shape[-1]).numpy()
    return torch.from_numpy(scipy.stats.multinomial.logpmf(one_hot, 1, scipy.special.softmax(f.numpy(), axis=-1)))


def scipy_poisson_log_prob(f: Tensor, y: Tensor) -> Tensor:
    return torch.from_numpy(scipy.stats.poisson.logpmf(y.numpy(), f.exp().numpy()).sum(-1))


def gradient(log_prob: LogProb, f: Tensor, y: Tensor) -> Tensor:
    """r_n = −∇_{f_n} Σ log p."""
    return _tensor(torch.autograd.functional.jacobian(lambda outputs: -log_prob(outputs, y).sum(), f))


def hessian(log_prob: LogProb, f: Tensor, y: Tensor) -> Tensor:
    """Λ_n = −∇²_{f_n} Σ log p: the diagonal blocks of the (N, K, N, K) Hessian."""
    return _blocks(_tensor(torch.autograd.functional.hessian(lambda outputs: -log_prob(outputs, y).sum(), f)))


def jacobian(function: Callable[[Tensor], Tensor], f: Tensor) -> Tensor:
    """∂ function(f)_n/∂f_n: the diagonal blocks of the (N, K, N, K) Jacobian."""
    return _blocks(_tensor(torch.autograd.functional.jacobian(function, f)))


def softmax_noise_precision(f: Tensor) -> Tensor:
    """diag(p) − ppᵀ in float64 without cancellation: Λ_ii = p_i Σ_{j≠i} p_j, Λ_ij = −p_i p_j."""
    p = softmax(f)
    size = p.shape[-1]
    others = torch.stack([p[:, [j for j in range(size) if j != i]].sum(-1) for i in range(size)], -1)
    off_diagonal = -p[:, :, None] * p[:, None, :] * (1 - torch.eye(size, dtype=p.dtype))
    return off_diagonal + torch.diag_embed(p * others)


def softmax_residual(f: Tensor, y: Tensor) -> Tensor:
    """p − e_y in float64, with 1 − p_y as the sum of the other probabilities."""
    p = softmax(f)
    rows = []
    for row, label in zip(p, y.tolist(), strict=True):
        r = row.clone()
        r[label] = -torch.cat([row[:label], row[label + 1 :]]).sum()
        rows.append(r)
    return torch.stack(rows)


def softmax_loss(f: Tensor, y: Tensor) -> Tensor:
    """−log p_y = log(1 + Σ_{j≠y} e^{f_j − f_y}) in float64; for gaps below 700."""
    f = f.double()
    rows = []
    for row, label in zip(f, y.tolist(), strict=True):
        others = torch.cat([row[:label], row[label + 1 :]])
        rows.append(math.log1p(float((others - row[label]).exp().sum())))
    return torch.tensor(rows, dtype=torch.float64)


def softmax(f: Tensor) -> Tensor:
    """exp(f_k − max f)/Σ in float64."""
    e = (f.double() - f.double().amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def root_logistic_variance(f: Tensor) -> Tensor:
    """√(p(1 − p)) = 1/(2 cosh(f/2)) in float64."""
    return 0.5 / torch.cosh(0.5 * f.double())


def expectation_of_sigmoid(mean: float, variance: float, nodes: int = 200) -> float:
    """E[σ(f)] for f ~ N(mean, variance), by Gauss-Hermite quadrature."""
    points, weights = scipy.special.roots_hermitenorm(nodes)
    values = scipy.special.expit(mean + math.sqrt(variance) * points)
    return float((weights * values).sum() / math.sqrt(2 * math.pi))


def _blocks(full: Tensor) -> Tensor:
    return torch.stack([full[n, :, n, :] for n in range(len(full))])


def _tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor)
    return value
