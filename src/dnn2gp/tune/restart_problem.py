"""What restarts are asked to find, and what they return: δ and σ of a network, along the line of its minima."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from dnn2gp.evidence.function import RANGE
from dnn2gp.gp.by_evidence import spread
from dnn2gp.likelihoods import GaussianLikelihood, Likelihood
from dnn2gp.tune.ensemble import Ensemble, layout_of
from dnn2gp.weights.structures import Structure

# The first and last initial λ, in units of the variance of the targets.
_FIRST = (10.0, 0.03)
# The range of σ, relative to the standard deviation of the targets.
_SIGMAS = (1e-4, 1e4)


@dataclass(frozen=True, eq=False)
class RestartProblem:
    """The data, and which of δ and σ are open."""

    network: nn.Module
    inputs: Float[Tensor, "1 N *in"]
    targets: Shaped[Tensor, "1 N *out"]
    likelihood: Likelihood
    """With σ = 1 if it is open."""
    given: float | None
    """δ, if it is given."""
    spread: float | None
    """The standard deviation of the targets, if σ is open."""

    @staticmethod
    def of(
        network: nn.Module, inputs: Tensor, targets: Tensor, likelihood: Likelihood, given: float | None
    ) -> RestartProblem:
        if not likelihood.is_open:
            return RestartProblem(network, inputs[None], targets[None], likelihood, given, None)
        return RestartProblem(network, inputs[None], targets[None], GaussianLikelihood(1.0), given, spread(targets))

    @property
    def num_weights(self) -> int:
        """P."""
        return layout_of(self.network).num_weights

    @property
    def num_sites(self) -> int:
        """M = N K."""
        with torch.no_grad():
            return self.inputs.shape[1] * self.network(self.inputs[0, :1]).numel()

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to tune."""
        return self.given is not None and self.spread is None

    @property
    def bounds(self) -> tuple[float, float]:
        """The range of log λ."""
        if self.spread is None:
            return log(RANGE[0]), log(RANGE[1])
        if self.given is None:
            return log(RANGE[0] * self.spread**2), log(RANGE[1] * self.spread**2)
        low, high = (log(self.given * (share * self.spread) ** 2) for share in _SIGMAS)
        return low, high

    def first(self, count: int) -> Float[Tensor, " B"]:
        """The initial log λ of each member, from strong priors to weak ones; in the middle for a single member."""
        if self.fixed:
            return torch.full((count,), log(self.given or 1.0), dtype=torch.float64)
        if self.given is not None:
            return torch.full((count,), log(self.given * self.first_variance), dtype=torch.float64)
        ends = [log(end * (self.spread or 1.0) ** 2) for end in _FIRST]
        strong, weak = ends
        line = torch.linspace(strong, weak, count, dtype=torch.float64)
        return (line if count > 1 else line + (weak - strong) / 2).clamp(*self.bounds)

    @property
    def first_variance(self) -> float:
        """σ² of a network that explains three quarters of the variance of the targets; 1 if σ is not open."""
        return 1.0 if self.spread is None else 0.25 * self.spread**2

    def at_edge(self, place: float, variance: float) -> bool:
        """Whether log λ or σ² is at the edge of its range."""
        ends = [abs(place - end) < 1e-6 for end in self.bounds] if not self.fixed else []
        if self.spread is not None:
            low, high = ((share * self.spread) ** 2 for share in _SIGMAS)
            ends.append(not low * (1 + 1e-6) < variance < high * (1 - 1e-6))
        return any(ends)

    def ensemble(self, product: Float[Tensor, " B"]) -> Ensemble:
        """The losses for these λ."""
        return Ensemble(self.network, self.inputs, self.targets, self.likelihood, product)

    def evidence(
        self, ensemble: Ensemble, weights: Float[Tensor, "B P"], *, hopeful: bool = False
    ) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """The log evidence, −∞ where it is not finite, and σ² (1 if it is not open).

        Away from a minimum, the gain of one more step is subtracted or, if `hopeful`, added.
        """
        with torch.no_grad():
            total = 2 * ensemble.loss(weights)
        variance = self.variance(total, ensemble.prior_precision[:, 0])
        curvature, own = ensemble.curvature(weights), None if self.spread is None else variance
        if hopeful:
            found = ensemble.evidence(weights, curvature, own)
        else:
            found = ensemble.cautious_evidence(weights, curvature, own)
        return found.nan_to_num(nan=-torch.inf), variance

    def variance(self, total: Float[Tensor, " B"], product: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The σ² with the largest evidence for ‖y − f‖² + λ wᵀw = `total` and λ, or that of a given δ."""
        if self.spread is None:
            return torch.ones_like(product)
        if self.given is not None:
            return product / self.given
        low, high = ((share * self.spread) ** 2 for share in _SIGMAS)
        return (total / self.targets.numel()).clamp(low, high)


@dataclass(frozen=True, eq=False)
class Fitted:
    """The member with the largest evidence, at a minimum with its δ and σ."""

    network: nn.Module
    likelihood: Likelihood
    prior_precision: float
    evidence: float
    """The log evidence."""
    relative_gradient: float
    """0 at a minimum."""
    rounds: int
    settled: bool
    """Whether δ and σ have converged."""
    at_edge: bool = False
    """Whether δ or σ is at the edge of its range, so that the evidence has no maximum inside it."""
    structure: Structure | None = None
    """The structure of the posterior whose evidence was tuned; None for the exact one."""
