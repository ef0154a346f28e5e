"""The table of likelihoods. A new likelihood adds one case and inherits every check of test_contract.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dnn2gp.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    CustomLikelihood,
    GaussianLikelihood,
    Likelihood,
    PoissonLikelihood,
)

from reference import likelihoods as oracle


def _same(y: Tensor, num_outputs: int) -> Tensor:
    return y


@dataclass(frozen=True)
class Case:
    """A likelihood for N examples and K outputs, targets for it, and its density and mean by an oracle."""

    id: str
    build: Callable[[int, int], Likelihood]
    targets: Callable[[Tensor, torch.Generator], Tensor]
    log_prob: Callable[[int, int], oracle.LogProb]
    mean: Callable[[Tensor], Tensor]
    as_vectors: Callable[[Tensor, int], Tensor] = _same
    min_outputs: int = 1
    rank_deficit: int = 0
    saves: bool = True


def sigma_per_output(num_examples: int, num_outputs: int) -> Tensor:
    return torch.linspace(0.3, 1.7, num_outputs, dtype=torch.float64)


def sigma_per_example(num_examples: int, num_outputs: int) -> Tensor:
    return torch.linspace(0.4, 1.2, num_examples, dtype=torch.float64).unsqueeze(-1)


def sigma_per_entry(num_examples: int, num_outputs: int) -> Tensor:
    return sigma_per_example(num_examples, num_outputs) * sigma_per_output(num_examples, num_outputs)


def _normal_targets(f: Tensor, generator: torch.Generator) -> Tensor:
    return f + torch.randn(f.shape, generator=generator, dtype=f.dtype)


def _binary_targets(f: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randint(2, f.shape, generator=generator).to(f.dtype)


def _labels(f: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randint(f.shape[1], (len(f),), generator=generator)


def _counts(f: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randint(6, f.shape, generator=generator).to(f.dtype)


def _positive_targets(f: Tensor, generator: torch.Generator) -> Tensor:
    return 0.1 + torch.rand(f.shape, generator=generator, dtype=f.dtype)


def _one_hot(y: Tensor, num_outputs: int) -> Tensor:
    return torch.nn.functional.one_hot(y, num_outputs).double()


def _gaussian(id: str, sigma: Callable[[int, int], Tensor]) -> Case:
    return Case(
        id,
        lambda n, k: GaussianLikelihood(sigma(n, k)),
        _normal_targets,
        lambda n, k: oracle.gaussian_log_prob(sigma(n, k)),
        lambda f: f,
    )


def _custom_gaussian() -> Likelihood:
    return CustomLikelihood(
        lambda f, y: 0.5 * ((y - f) / 0.7).square().sum(),
        log_normaliser=lambda f, y: (f.new_tensor(0.7).log() + 0.5 * f.new_tensor(2 * torch.pi).log()) * len(f),
        sample=lambda f, s, g: f + 0.7 * torch.randn((s, *f.shape), generator=g, dtype=f.dtype),
    )


def _custom_softmax() -> Likelihood:
    def covariance(f: Tensor) -> Tensor:
        p = f.softmax(-1)
        return torch.diag(p) - torch.outer(p, p)

    def sample(f: Tensor, num_samples: int, generator: torch.Generator) -> Tensor:
        labels = torch.multinomial(f.softmax(-1), num_samples, replacement=True, generator=generator).mT
        return torch.nn.functional.one_hot(labels, f.shape[-1]).to(f.dtype)

    return CustomLikelihood(
        lambda f, y: -(y * f.log_softmax(-1)).sum(), mean=lambda f: f.softmax(-1), covariance=covariance, sample=sample
    )


def _custom_exponential() -> Likelihood:
    """y ~ Exponential with mean e^f: Λ = diag(y e^{−f}) depends on y, and the link is not canonical."""
    return CustomLikelihood(
        lambda f, y: (f + y * torch.exp(-f)).sum(),
        mean=torch.exp,
        sample=lambda f, s, g: f.exp() * torch.empty((s, *f.shape), dtype=f.dtype).exponential_(generator=g),
    )


CASES = [
    _gaussian("gaussian-scalar", lambda n, k: torch.tensor(0.7, dtype=torch.float64)),
    _gaussian("gaussian-per-output", sigma_per_output),
    _gaussian("gaussian-per-example", sigma_per_example),
    _gaussian("gaussian-per-entry", sigma_per_entry),
    Case(
        "bernoulli",
        lambda n, k: BernoulliLikelihood(),
        _binary_targets,
        lambda n, k: oracle.bernoulli_log_prob,
        torch.sigmoid,
    ),
    Case(
        "categorical",
        lambda n, k: CategoricalLikelihood(),
        _labels,
        lambda n, k: oracle.categorical_log_prob,
        lambda f: f.softmax(-1),
        as_vectors=_one_hot,
        min_outputs=2,
        rank_deficit=1,
    ),
    Case("poisson", lambda n, k: PoissonLikelihood(), _counts, lambda n, k: oracle.poisson_log_prob, torch.exp),
    Case(
        "custom-gaussian",
        lambda n, k: _custom_gaussian(),
        _normal_targets,
        lambda n, k: oracle.gaussian_log_prob(torch.tensor(0.7, dtype=torch.float64)),
        lambda f: f,
        saves=False,
    ),
    Case(
        "custom-softmax",
        lambda n, k: _custom_softmax(),
        lambda f, g: _one_hot(_labels(f, g), f.shape[1]).to(f.dtype),
        lambda n, k: lambda f, y: oracle.categorical_log_prob(f, y.argmax(-1)),
        lambda f: f.softmax(-1),
        min_outputs=2,
        saves=False,
    ),
    Case(
        "custom-exponential",
        lambda n, k: _custom_exponential(),
        _positive_targets,
        lambda n, k: oracle.exponential_log_prob,
        torch.exp,
        saves=False,
    ),
]
