"""Small problems for the tests: a network, data, a dnn2gp likelihood, and the same loss written out for the oracles."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dnn2gp.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    CustomLikelihood,
    GaussianLikelihood,
    Likelihood,
    PoissonLikelihood,
)

from reference import brute_force


@dataclass(frozen=True)
class Problem:
    """float64 throughout. `loss` is ℓ(f, y) of one example; `delta` the prior precision of each weight."""

    module: nn.Module
    x: Tensor
    y: Tensor
    likelihood: Likelihood
    loss: Callable[[Tensor, Tensor], Tensor]
    delta: Tensor
    x_test: Tensor

    @property
    def weights(self) -> Tensor:
        return brute_force.flat_weights(self.module)

    def total_loss(self, weights: Tensor) -> Tensor:
        """Eq. (1): Σ ℓ(yᵢ, f_w(xᵢ)) + ½ wᵀ diag(δ) w, as a plain function of the flat weights."""
        f = functional(self.module, weights, self.x)
        return sum(self.loss(fi, yi) for fi, yi in zip(f, self.y, strict=True)) + 0.5 * (self.delta * weights**2).sum()

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """J, r, Λ by brute force."""
        f = brute_force.outputs(self.module, self.x)
        return (brute_force.jacobian(self.module, self.x), *brute_force.residual_and_precision(self.loss, f, self.y))

    def at_minimum(self) -> Problem:
        """The same problem with weights at a local minimum of the loss, to rounding, by damped Newton steps."""

        def total_loss(weights: Tensor) -> Tensor:
            """The same, all examples at once."""
            f = functional(self.module, weights, self.x)
            return torch.vmap(self.loss)(f, self.y).sum() + 0.5 * (self.delta * weights**2).sum()

        w = self.weights.clone()
        damping = 1.0
        for _ in range(300):
            loss = total_loss(w)
            gradient = torch.func.grad(total_loss)(w)
            if gradient.norm() < 1e-11 * (1 + w.norm()):
                break
            hessian = torch.func.hessian(total_loss)(w)
            values, vectors = torch.linalg.eigh(hessian)
            trial = w - vectors @ ((vectors.T @ gradient) / (values.abs() + damping))
            # Near the minimum the loss no longer tells progress from rounding; the gradient does.
            nearer = gradient.norm() < 1e-3 and torch.func.grad(total_loss)(trial).norm() < gradient.norm()
            if nearer or total_loss(trial) < loss:
                w, damping = trial, damping / 10 if damping > 1e-14 else 0.0
            else:
                damping = max(damping, 1e-12) * 10
        assert torch.func.grad(self.total_loss)(w).norm() < 1e-9
        return replace(self, module=brute_force.with_weights(self.module, w))


def functional(module: nn.Module, weights: Tensor, x: Tensor) -> Tensor:
    """f_w(x), N × K, for an MLP whose weights all train."""
    parts, start = {}, 0
    for name, parameter in module.named_parameters():
        parts[name] = weights[start : start + parameter.numel()].reshape(parameter.shape)
        start += parameter.numel()
    return torch.func.functional_call(module, parts, (x,)).reshape(len(x), -1)


def mlp(inputs: int, width: int, outputs: int, generator: torch.Generator) -> nn.Module:
    module = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.7)
    return module


def likelihood_case(kind: str, outputs: int, f: Tensor, generator: torch.Generator):
    """(likelihood, oracle loss, targets) of a kind, with targets drawn about the outputs f."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    noise = torch.randn(f.shape, generator=generator, dtype=torch.float64)
    if kind == "gaussian":
        return GaussianLikelihood(0.3), brute_force.gaussian(0.3), f + 0.5 * noise
    if kind == "gaussian per output":
        sigma = 0.2 + uniform(outputs)
        return GaussianLikelihood(sigma), brute_force.gaussian(sigma), f + 0.5 * noise
    if kind == "bernoulli":
        return BernoulliLikelihood(), brute_force.bernoulli, (uniform(*f.shape) < 0.5).double()
    if kind == "categorical":
        return CategoricalLikelihood(), brute_force.categorical, torch.randint(outputs, (len(f),), generator=generator)
    if kind == "poisson":
        return PoissonLikelihood(), brute_force.poisson, torch.poisson(f.clamp(max=1.5).exp(), generator=generator)
    if kind == "custom":  # log-cosh: convex, its curvature depends on y
        loss = lambda f, y: torch.log(torch.cosh(f - y)).sum()  # noqa: E731
        return CustomLikelihood(loss), loss, f + 0.5 * noise
    raise ValueError(kind)


KINDS = ("gaussian", "gaussian per output", "bernoulli", "categorical", "poisson", "custom")


def problem(kind: str, examples: int = 6, outputs: int = 2, width: int = 3, seed: int = 0) -> Problem:
    """A problem with a 2-input MLP; `categorical` needs outputs ≥ 2."""
    generator = torch.Generator().manual_seed(seed)
    module = mlp(2, width, outputs, generator)
    x, x_test = (torch.randn(n, 2, generator=generator, dtype=torch.float64) for n in (examples, 4))
    likelihood, loss, y = likelihood_case(kind, outputs, brute_force.outputs(module, x), generator)
    count = sum(p.numel() for p in module.parameters())
    delta = 0.5 + torch.rand(count, generator=generator, dtype=torch.float64)
    return Problem(module, x, y, likelihood, loss, delta, x_test)


def minimum(kind: str, examples: int = 6, outputs: int = 2) -> Problem:
    """A problem at a minimum of its loss: found once for all tests, with a module of one's own."""
    case = _minimum(kind, examples, outputs)
    return replace(case, module=copy.deepcopy(case.module))


@functools.cache
def _minimum(kind: str, examples: int, outputs: int) -> Problem:
    return problem(kind, examples, outputs).at_minimum()
