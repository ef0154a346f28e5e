"""prior_precision="evidence": choosing δ, and σ if it is open, by the evidence at the network's weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from dnn2gp.evidence.function import Optimum
from dnn2gp.evidence.spectrum import Spectrum
from dnn2gp.evidence.tuning_result import EVIDENCE, Trial, TuningResult
from dnn2gp.gp.evidence_at_mode import PRECISION, largest_evidence_at_mode
from dnn2gp.gp.interpolation import explains_too_much, left_out_error
from dnn2gp.inference import Decomposition, Inference, LinearisedMode, LinearModel, NetworkOutput
from dnn2gp.likelihoods import GaussianLikelihood, Likelihood
from dnn2gp.network.layout import Layout
from dnn2gp.support.errors import EvidenceWarning, InputError, warn_user
from dnn2gp.support.processes import ALONE, Team
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.priors import PriorPrecision, expand_precision

SIGMA = "sigma"
_SYMBOLS = {PRECISION: "δ", SIGMA: "σ"}
# A regression whose noise is this share of the spread of its targets explains almost nothing.
UNEXPLAINED = 0.95
# The curves that are kept extend this many decades to both sides of the choice.
_DECADES, _POINTS = 3, 61
EXACT_WORDS = (
    "The evidence has no maximum in σ within its range: the network fits the targets exactly, or the targets are "
    "constant. Set σ, or train with more data or a smaller network."
)


@final
@dataclass(frozen=True)
class ByEvidence:
    """prior_precision=ByEvidence(): the δ (and open σ) with the largest evidence, and where that is evaluated.

    Away from a minimum there are two: the Laplace evidence at the weights of the network, NetworkOutput(), and that at
    the mode of the linearised network, LinearisedMode(). By default, it is the first for classification and counts,
    whose δ predicts better, and the second for regression, where it is the exact evidence of the linear model.
    """

    at: NetworkOutput | LinearisedMode | None = None

    def __post_init__(self) -> None:
        if self.at is not None and not isinstance(self.at, NetworkOutput | LinearisedMode):
            raise InputError(f"at: expected NetworkOutput(), LinearisedMode() or None; got {self.at!r}.")


@dataclass(frozen=True)
class Tuned:
    """The choice that the evidence made."""

    prior_precision: PriorPrecision
    likelihood: Likelihood
    result: TuningResult
    words: str
    """The choice in a few words, e.g. "δ = 1.2, σ = 0.3"."""
    decomposition: Decomposition | None = None
    """That of ΦᵀΦ with this choice, if it is known."""


def tune_model(
    expand: Callable[[Likelihood], Expansion],
    likelihood: Likelihood,
    prior_precision: PriorPrecision | ByEvidence | str | None,
    targets: Tensor,
    layout: Layout,
    choose: Callable[[LinearModel], Inference],
    team: Team = ALONE,
) -> Tuned | None:
    """The δ and open σ with the largest evidence at these weights; None if both are given. A given one is kept.

    `choose` returns the inference for a linear model, whose evidence is maximised.
    """
    if isinstance(prior_precision, str) and prior_precision != EVIDENCE:
        raise InputError(
            f'prior_precision: expected "{EVIDENCE}", a number, a mapping from layer to number, or a tensor; got '
            f"{prior_precision!r}."
        )
    by_evidence = prior_precision is None or isinstance(prior_precision, str | ByEvidence)
    at = prior_precision.at if isinstance(prior_precision, ByEvidence) else None
    if not by_evidence and not likelihood.is_open:
        return None
    known = GaussianLikelihood(spread(targets, team)) if likelihood.is_open else likelihood
    expansion = expand(known)
    if isinstance(at, LinearisedMode) and not expansion.quadratic:
        return _at_mode(expansion, known, layout, choose)
    precision = 1.0 if prior_precision is None or isinstance(prior_precision, str | ByEvidence) else prior_precision
    prior = Gaussian.prior(expand_precision(precision, layout, expansion.anchor))
    model = LinearModel.from_laplace(expansion, prior)
    spectrum = Spectrum.of(model, choose(model), at_weights=isinstance(at, NetworkOutput))
    best = spectrum.maximise(precision=by_evidence, noise=likelihood.is_open)
    if at is None and by_evidence and likelihood.is_open and explains_too_much(expansion, best.noise_scale.item()):
        other = Spectrum.of(model, choose(model), at_weights=True)
        choices = [(each, each.maximise(precision=True, noise=True)) for each in (spectrum, other)]
        spectrum, best = min(choices, key=lambda pair: _left_out_error(model, pair[1], choose))
    sigma = known.sigma.item() if likelihood.is_open and isinstance(known, GaussianLikelihood) else None
    choice = _Varied(spectrum, best, best.precision_scale.item() if by_evidence else None, sigma)
    notes = choice.notes()
    for note in notes:
        warn_user(note, EvidenceWarning)
    result = TuningResult("evidence", choice.trials(), dict(choice.settings), best.value, not best.at_edge, notes)
    return Tuned(
        prior_precision=precision if choice.delta is None else choice.delta,
        likelihood=known if sigma is None else GaussianLikelihood(choice.settings[SIGMA]),
        result=result,
        words=", ".join(f"{_SYMBOLS[name]} = {value:.3g}" for name, value in choice.settings.items()),
        decomposition=_rescaled(spectrum, best),
    )


def _rescaled(spectrum: Spectrum, best: Optimum) -> Decomposition | None:
    """ΦᵀΦ with the chosen multiples c of δ and s of σ is 1/(c s²) times what it was."""
    factor = 1 / (best.precision_scale.item() * best.noise_scale.item() ** 2)
    return None if spectrum.decomposition is None else spectrum.decomposition.scaled(factor)


def _left_out_error(model: LinearModel, best: Optimum, choose: Callable[[LinearModel], Inference]) -> float:
    """The leave-one-out error of the linear model with these multiples of δ and σ."""
    s, prior = best.noise_scale.item(), model.prior.precision.diagonal() * best.precision_scale.item()
    expansion = model.expansion.weighted(s**-2)
    scaled = LinearModel.from_laplace(expansion, Gaussian.prior(prior.to(expansion.anchor.dtype)))
    return left_out_error(choose(scaled).infer(scaled))


def _at_mode(
    expansion: Expansion, likelihood: Likelihood, layout: Layout, choose: Callable[[LinearModel], Inference]
) -> Tuned:
    precision, result = largest_evidence_at_mode(expansion, likelihood, layout, choose)
    delta = result.best[PRECISION]
    if not result.converged:
        result = replace(result, notes=(edge_words("δ", f"δ = {delta:.1g}"),))
        warn_user(result.notes[0], EvidenceWarning)
    return Tuned(precision, likelihood, result, f"δ = {delta:.3g}")


@dataclass(frozen=True, eq=False)
class _Varied:
    """The maximum in the user's units: δ, unless it was given, and σ = s σ₀, if it was open."""

    spectrum: Spectrum
    best: Optimum
    delta: float | None
    unit: float | None
    """σ₀."""

    @property
    def settings(self) -> dict[str, float]:
        """The chosen values by name."""
        found = {} if self.delta is None else {PRECISION: self.delta}
        return found if self.unit is None else {**found, SIGMA: self.unit * self.best.noise_scale.item()}

    def notes(self) -> tuple[str, ...]:
        """Messages about problems of the network that the evidence reveals."""
        best, notes = self.best, []
        scale, noise = best.precision_scale.item(), best.noise_scale.item()
        if "δ" in best.at_edge:
            asks = "weights of zero" if scale > 1 else "ever weaker priors"
            notes.append(edge_words("δ", f"δ = {scale:.1g}", asks))
        if "σ" in best.at_edge:
            notes.append(EXACT_WORDS)
        elif self.unit is not None and noise > UNEXPLAINED:
            notes.append(underfit_words(noise))
        determined = self.spectrum.degrees_of_freedom(scale, noise)
        if not notes and determined < 1:
            notes.append(
                f"The data determine less than one weight ({determined:.2f}), so the GP stays close to its prior. "
                "Train longer, or check the scale of inputs and targets."
            )
        return tuple(notes)

    def trials(self) -> tuple[Trial, ...]:
        """The evidence along δ and along σ, through the choice."""
        factors = torch.logspace(-_DECADES, _DECADES, _POINTS, dtype=torch.float64)
        c, s = self.best.precision_scale, self.best.noise_scale
        found: list[tuple[dict[str, float], float]] = []
        if self.delta is not None:
            deltas, values = (self.delta * factors).tolist(), self.spectrum(c * factors, s).tolist()
            found += [({**self.settings, PRECISION: own}, value) for own, value in zip(deltas, values, strict=True)]
        if self.unit is not None:
            sigmas = (self.settings[SIGMA] * factors.sqrt()).tolist()
            values = self.spectrum(c, s * factors.sqrt()).tolist()
            found += [({**self.settings, SIGMA: own}, value) for own, value in zip(sigmas, values, strict=True)]
        unique = {tuple(settings.items()): value for settings, value in found}
        return tuple(Trial(dict(settings), {"evidence": value}) for settings, value in unique.items())


def edge_words(name: str, where: str, asks: str = "ever larger or smaller values") -> str:
    """The note that the evidence has no maximum in a setting."""
    return (
        f"The evidence has no maximum in {name}: it prefers {asks}, up to the edge of the range ({where}). Check the "
        "training loss, and the targets and their scale (standardise them), or pass δ as a number."
    )


def underfit_words(share: float) -> str:
    """The note that almost nothing is explained, with the noise as a share of the spread."""
    return (
        f"Underfit: the noise with the largest evidence is {share:.0%} of the spread of the targets, so the network "
        "explains almost nothing. Train longer, scale inputs and targets, or use a larger network."
    )


def spread(targets: Tensor, team: Team = ALONE) -> float:
    """The standard deviation of the targets around their means, the unit of an open σ; 1 if they are constant."""
    wide = targets.double()
    count = team.total(len(wide))
    gaps = wide - team.sum(wide.sum(0)) / count
    found = (team.total(gaps.square().sum().item()) / (count * max(1, wide[0].numel()))) ** 0.5
    return found if found > 0 else 1.0
