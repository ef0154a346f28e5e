"""The current δ and σ while a network is tuned: one number each, or one δ per layer and one σ per output."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dnn2gp.evidence.function import RANGE, EvidenceFunction, Optimum
from dnn2gp.evidence.tuning_result import EVIDENCE, Setting, Trial
from dnn2gp.gp.by_evidence import EXACT_WORDS, PRECISION, SIGMA, UNEXPLAINED, edge_words, spread, underfit_words
from dnn2gp.gp.convert import convert
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.inference.mean import GaussNewtonStep
from dnn2gp.likelihoods import GaussianLikelihood, Likelihood
from dnn2gp.network.data import Data
from dnn2gp.network.layout import Layout
from dnn2gp.support.errors import InputError, NotAMinimumWarning
from dnn2gp.tune.ensemble import layout_of
from dnn2gp.weights.priors import PriorPrecision, expand_precision

# The initial value of an open σ, relative to the standard deviation of the targets.
_FIRST_NOISE = 0.5


@dataclass(frozen=True, eq=False)
class PriorChoice:
    """δ (one number, or one per layer), σ (one number, or one per output), and the trials so far."""

    layout: Layout
    precision: Float[Tensor, " *L"]
    likelihood: Likelihood
    noise: bool
    """Whether σ is tuned."""
    unit: float
    """The standard deviation of the targets; σ is searched between 1e-4 and 1e4 times this."""
    per_output: bool
    trials: tuple[Trial, ...] = ()

    @staticmethod
    def first(
        network: nn.Module,
        data: Data,
        likelihood: Likelihood,
        prior_precision: PriorPrecision,
        per_layer: bool,
        per_output: bool,
    ) -> PriorChoice:
        """The starting point of a tuning run."""
        if not isinstance(likelihood, Likelihood):
            raise InputError(f"likelihood: expected an instance, e.g. GaussianLikelihood(); got {likelihood!r}.")
        if per_output and not likelihood.is_open:
            raise InputError(
                "per_output: expected GaussianLikelihood() without a σ; only then is one σ per output tuned."
            )
        layout, targets = layout_of(network), data.targets
        like = torch.zeros((), dtype=torch.float64)
        each = expand_precision(prior_precision, layout, like)
        layers = torch.stack([each[layout.ranges[layout.names[group[0]]]][0] for group in layout.layers.values()])
        if not torch.equal(layout.expand(layers), each) or (not per_layer and bool((each != each[0]).any())):
            raise InputError("prior_precision: expected one initial value, or one per layer with per_layer=True.")
        unit = spread(targets) if likelihood.is_open else 1.0
        if likelihood.is_open:
            outputs = targets.shape[1] if targets.ndim > 1 else 1
            sigma = torch.full((outputs,), _FIRST_NOISE * unit, dtype=torch.float64)
            known: Likelihood = GaussianLikelihood(sigma if per_output else sigma[0])
        else:
            known = likelihood.detached()
        return PriorChoice(layout, layers if per_layer else each[0], known, likelihood.is_open, unit, per_output)

    @property
    def of_weights(self) -> Float[Tensor, " P"]:
        """δ of each weight."""
        if self.precision.ndim:
            return self.layout.expand(self.precision)
        return self.precision.expand(self.layout.num_weights)

    @property
    def settings(self) -> dict[str, Setting]:
        """By name: prior_precision, or prior_precision[layer]; sigma, or sigma[output]."""
        found = _named(PRECISION, self.precision, list(self.layout.layers))
        if self.noise and isinstance(self.likelihood, GaussianLikelihood):
            sigma = self.likelihood.sigma
            found |= _named(SIGMA, sigma, [str(output) for output in range(sigma.numel())])
        return found

    def converted(self, network: nn.Module, data: Data) -> GaussianProcess:
        """The GP of the network with this δ and σ; does not warn that the network is not at a minimum yet."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotAMinimumWarning)
            return convert(
                network, (data.inputs, data.targets), self.likelihood, self.of_weights, mean=GaussNewtonStep()
            )

    def improved(self, gp: GaussianProcess) -> PriorChoice:
        """The δ and σ with the largest evidence at the features of a GP that was made with these."""
        return self._moved(self._function(gp).maximise(noise=self.noise, bounds=RANGE))

    def recorded(self, gp: GaussianProcess, values: Mapping[str, float] | None = None) -> PriorChoice:
        """The same choice with one more trial: the GP that was made with it, and further values."""
        found = {
            EVIDENCE: gp.evidence().value,
            "relative_gradient": gp.model.relative_gradient(),
            "step_bound": gp.inference.step_bound(),
            **(values or {}),
        }
        return replace(self, trials=(*self.trials, Trial(self.settings, found, len(self.trials))))

    def shifted(self, step: float) -> PriorChoice:
        """With log δ larger by this much."""
        return replace(self, precision=(self.precision * exp(step)).clamp(*RANGE))

    def along_minimum(self, gp: GaussianProcess) -> PriorChoice:
        """The best (δ/c, √c σ) at the weights of a GP that was made with this choice; a minimum stays a minimum.

        The evidence depends on c through −(M/2) log c − (‖(y − f)/σ‖² + wᵀ diag(δ) w) / 2c, M = N K.
        """
        assert isinstance(self.likelihood, GaussianLikelihood)
        white, weights = gp.model.expansion.white_residual(), gp.network.weights.double()
        c = (white.square().sum() + (self.of_weights.to(weights) * weights.square()).sum()).cpu() / white.numel()
        sigma = (self.likelihood.sigma * c.sqrt()).clamp(1e-4 * self.unit, 1e4 * self.unit)
        return replace(self, precision=(self.precision / c).clamp(*RANGE), likelihood=GaussianLikelihood(sigma))

    def notes(self) -> tuple[str, ...]:
        """Messages about signs that the network does not suit the data."""
        low, high = (self.precision.min().item(), self.precision.max().item())
        found = []
        if low <= RANGE[0] * (1 + 1e-6) or high >= RANGE[1] * (1 - 1e-6):
            found.append(edge_words("δ", f"δ = {high if high >= RANGE[1] * (1 - 1e-6) else low:.1g}"))
        if self.noise and isinstance(self.likelihood, GaussianLikelihood):
            share = self.likelihood.sigma.max().item() / self.unit
            if share > UNEXPLAINED:
                found.append(underfit_words(share))
            elif self.likelihood.sigma.min().item() <= 1e-4 * self.unit * (1 + 1e-6):
                found.append(EXACT_WORDS)
        return tuple(found)

    def toward(self, other: PriorChoice, share: float) -> PriorChoice:
        """A point between this and another choice, along log δ and log σ."""
        likelihood = self.likelihood
        if isinstance(likelihood, GaussianLikelihood) and isinstance(other.likelihood, GaussianLikelihood):
            likelihood = GaussianLikelihood(likelihood.sigma * (other.likelihood.sigma / likelihood.sigma) ** share)
        return replace(
            self, precision=self.precision * (other.precision / self.precision) ** share, likelihood=likelihood
        )

    def distance(self, other: PriorChoice) -> float:
        """The largest change of log δ or log σ."""
        gaps = [(self.precision.log() - other.precision.log()).abs().max()]
        if isinstance(self.likelihood, GaussianLikelihood) and isinstance(other.likelihood, GaussianLikelihood):
            gaps.append((self.likelihood.sigma.log() - other.likelihood.sigma.log()).abs().max())
        return torch.stack(gaps).max().item()

    def same_precision(self, other: PriorChoice) -> bool:
        """Whether both have the same δ."""
        return torch.equal(self.precision, other.precision)

    def _function(self, gp: GaussianProcess) -> EvidenceFunction:
        return gp.evidence_function(per_layer=self.precision.ndim > 0, per_output=self.per_output, at_weights=True)

    def _moved(self, best: Optimum) -> PriorChoice:
        likelihood = self.likelihood
        if self.noise and isinstance(likelihood, GaussianLikelihood):
            sigma = likelihood.sigma * best.noise_scale
            likelihood = GaussianLikelihood(sigma.clamp(1e-4 * self.unit, 1e4 * self.unit))
        precision = (self.precision * best.precision_scale).clamp(*RANGE)
        return replace(self, precision=precision, likelihood=likelihood)


def _named(name: str, values: Tensor, parts: list[str]) -> dict[str, Setting]:
    if values.ndim == 0:
        return {name: values.item()}
    return {f"{name}[{part}]": value for part, value in zip(parts, values.tolist(), strict=True)}
