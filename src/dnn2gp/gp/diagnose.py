"""Can this GP be trusted? Measurements on the user's own network, with advice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from dnn2gp.features import GradientFeatures, NetworkFeatures
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.minimum import LARGE_GRADIENT, LARGE_STEP, SMALL_GRADIENT, SMALL_STEP, step_matters_little
from dnn2gp.inference import FunctionSpace, LinearModel
from dnn2gp.network.inputs import take
from dnn2gp.support.errors import InputError
from dnn2gp.support.numbers import whole_number
from dnn2gp.support.randomness import normal
from dnn2gp.weights.expansion import Expansion

_GOOD, _CAUTION, _BAD = "good", "caution", "bad"


@final
@dataclass(frozen=True)
class Finding:
    """One measurement: what was measured, its value, what it means, and what to do."""

    what: str
    value: str
    grade: str
    reading: str
    advice: str = ""

    def __str__(self) -> str:
        advice = f"\n      → {self.advice}" if self.advice and self.grade != _GOOD else ""
        return f"[{self.grade}] {self.what}: {self.value}\n      {self.reading}{advice}"


@final
@dataclass(frozen=True)
class Diagnosis:
    """The numbers behind the verdict, and the verdict in words (`str`)."""

    relative_gradient: float
    """‖∇ℓ̄‖ relative to the sum of the norms of its parts (data and prior); 0 at a minimum."""
    step_bound: float
    """√(∇ℓ̄ᵀ Σ̃ ∇ℓ̄): how far the step to the GP's mean moves any output at most, in posterior standard deviations."""
    step_weights: float
    """‖μ − w‖ / ‖w‖: how far one Gauss-Newton step moves the weights."""
    step_outputs: float
    """Root mean square of J(μ − w) over that of the posterior standard deviations, on a subset of the data."""
    curvature_gap: float | None
    """‖Hessian − GGN‖ / ‖GGN‖ (Frobenius, Hutchinson estimate); None where it is not defined."""
    smallest_noise_precision: float
    """The smallest eigenvalue of Λ on its range, over the data."""
    uninformative: float
    """The share of examples whose largest eigenvalue of Λ is below 1e-6: the network is certain about them."""
    spaces_gap: float
    """How much weight space and function space differ on a subset of the data, see `spaces_gap`."""
    precise: bool
    """Whether the weights are float64."""
    exact: bool
    """Whether the posterior is exact rather than approximated by a structure."""
    share: float = 1.0
    """The share of the network's weights that have a posterior; the others are frozen, or not in `subset`."""

    @property
    def findings(self) -> list[Finding]:
        """Each measurement with its interpretation."""
        findings = [self._minimum(), self._step(), self._curvature(), self._noise(), self._spaces()]
        return findings if self.share == 1 else [*findings, self._weights()]

    @property
    def verdict(self) -> str:
        """The worst grade of all findings: good, caution or bad."""
        return max((finding.grade for finding in self.findings), key=[_GOOD, _CAUTION, _BAD].index)

    @property
    def trustworthy(self) -> bool:
        """Whether no finding is bad."""
        return self.verdict != _BAD

    def __str__(self) -> str:
        verdict = {
            _GOOD: "The approximations of this GP hold: the network is at a minimum. (Its prior was not assessed.)",
            _CAUTION: "This GP can be used with care: see the points marked [caution].",
            _BAD: "Do not trust this GP yet: see the points marked [bad] and what to do about them.",
        }[self.verdict]
        return "\n".join([verdict, *(str(finding) for finding in self.findings)])

    def _minimum(self) -> Finding:
        return Finding(
            "gradient of the loss, relative to its parts",
            f"{self.relative_gradient:.2g}",
            self._grade_minimum(),
            "zero at a minimum, where the GP is the Laplace approximation (Theorem 1); the remaining step may move "
            f"an output by up to {self.step_bound:.2g} posterior standard deviations.",
            "Continue training on all data at once (L-BFGS, or Adam with a decaying learning rate), and use the δ of "
            "your training loss (precision_from_weight_decay). A ReLU network may settle at a kink, where the gradient "
            "does not vanish.",
        )

    def _grade_minimum(self) -> str:
        """Good if the step cannot matter at any input; at worst a caution if it matters little on the data."""
        grade = _grade(self.relative_gradient, SMALL_GRADIENT, LARGE_GRADIENT)
        if self.exact and step_matters_little(self.step_bound):
            return _GOOD
        harmless = self.exact and step_matters_little(self.step_outputs)
        return _CAUTION if grade == _BAD and harmless else grade

    def _step(self) -> Finding:
        if not self.exact:
            reading = (
                "the posterior is an approximation, so its mean stays at the network, minimum or not, and its "
                "variances may be far from those of the exact GP."
            )
            remedy = "Compare with structure=Dense() on part of the data, if that fits into memory."
            return Finding("one Gauss-Newton step to the GP's mean", "not taken", _CAUTION, reading, remedy)
        return Finding(
            "one Gauss-Newton step to the GP's mean",
            f"weights move by {self.step_weights:.2g} of their norm, outputs by {self.step_outputs:.2g} posterior "
            "standard deviations",
            _grade(self.step_outputs, SMALL_STEP, LARGE_STEP),
            "small if the network and the GP's mean predict the same.",
            "The mean of the GP is not the network. Train to a minimum, or compare predict(x).delta() with network(x).",
        )

    def _curvature(self) -> Finding:
        if self.curvature_gap is None:
            reading = "gradient features do not approximate the Hessian, or the network has no second derivative."
            return Finding("Hessian minus GGN", "not available", _CAUTION, reading)
        return Finding(
            "Hessian minus GGN, relative to the GGN",
            f"{self.curvature_gap:.2g}",
            _grade(self.curvature_gap, 0.5, 2.0),
            "small if the network fits its data; the GGN omits the residual term.",
            "The residuals are large: a larger network, longer training or a smaller δ would fit the data better.",
        )

    def _noise(self) -> Finding:
        return Finding(
            "smallest noise precision Λ",
            f"{self.smallest_noise_precision:.2g}; {self.uninformative:.0%} of the examples carry no information",
            _grade(self.uninformative, 0.5, 0.99),
            "an example about which the network is certain (Λ near 0) no longer constrains the weights.",
            "The network is saturated, so the posterior stays near the prior: raise δ (more weight decay) and retrain.",
        )

    def _weights(self) -> Finding:
        return Finding(
            "weights with a posterior",
            f"{self.share:.3%} of all",
            _CAUTION,
            "the others, frozen or not in subset=, are treated as known: the variances lack their uncertainty.",
            "Compare with the GP of all weights on part of the data, if that fits into memory.",
        )

    def _spaces(self) -> Finding:
        good, bad = (1e-6, 1e-3) if self.precise else (1e-2, 1e-1)
        return Finding(
            "weight space versus function space on a subset",
            f"they differ by {self.spaces_gap:.1g}",
            _grade(self.spaces_gap, good, bad),
            "the two are equal in exact arithmetic.",
            "The problem is ill-conditioned: use network.double(), or raise δ or σ.",
        )


def diagnose(
    gp: GaussianProcess, num_probes: int = 10, subset: int = 50, generator: torch.Generator | None = None
) -> Diagnosis:
    """Measure whether the network is at a minimum, and how well the approximations behind the GP hold.

    Args:
        gp: The GP of a trained network.
        num_probes: Random directions in which the Hessian is compared with the GGN.
        subset: The largest number of examples on which the two spaces are compared.
        generator: Draws the probes; by default, they are the same in every call.
    """
    if not isinstance(gp, GaussianProcess):
        raise InputError(f"gp: expected a GaussianProcess, as convert returns it; got {type(gp).__name__}.")
    num_probes, subset = whole_number("num_probes", num_probes), whole_number("subset", subset)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InputError(f"generator: expected a torch.Generator or None; got {type(generator).__name__}.")
    if gp.model.of_step:
        raise InputError(
            "diagnose: expected the GP of a trained network (convert); got that of a training step, whose weights "
            "are not at a minimum."
        )
    generator = generator or torch.Generator(gp.features.anchor.device).manual_seed(0)
    model, expansion = gp.model, gp.model.expansion
    few = _subset(expansion, subset)
    eigenvalues = torch.linalg.svdvals(expansion.root).square()
    return Diagnosis(
        relative_gradient=model.relative_gradient(),
        step_bound=gp.inference.step_bound(),
        step_weights=_ratio(gp.inference.step.norm(), expansion.anchor.double().norm()),
        step_outputs=_step_outputs(gp, few),
        curvature_gap=_curvature_gap(expansion, num_probes, generator),
        smallest_noise_precision=eigenvalues.min().item(),
        uninformative=(eigenvalues.amax(1) < 1e-6).double().mean().item(),
        spaces_gap=spaces_gap(LinearModel(few, model.prior), generator),
        precise=expansion.anchor.dtype == torch.float64,
        exact=gp.inference.exact,
        share=gp.features.network.share,
    )


def _grade(value: float, good: float, bad: float) -> str:
    return _GOOD if value <= good else _CAUTION if value <= bad else _BAD


def _ratio(part: Tensor, whole: Tensor) -> float:
    return (part / whole).item() if whole > 0 else 0.0


def _subset(expansion: Expansion, size: int) -> Expansion:
    """At most `size` examples, evenly spread over the data."""
    count = min(size, expansion.num_examples)
    index = torch.linspace(0, expansion.num_examples - 1, count, device=expansion.root.device).round().long()
    return replace(
        expansion, inputs=take(expansion.inputs, index), residual=expansion.residual[index], root=expansion.root[index]
    )


def _step_outputs(gp: GaussianProcess, few: Expansion) -> float:
    features = few.features
    inputs = features.examples(few.inputs) if isinstance(features, GradientFeatures) else few.inputs
    latent = gp.inference.latent(gp.features, inputs)
    variances = latent.covariance.diagonal(dim1=1, dim2=2).double()
    return (latent.shift.double().square().mean() / variances.mean()).sqrt().item()


def _curvature_gap(expansion: Expansion, num_probes: int, generator: torch.Generator) -> float | None:
    """‖R‖_F / ‖G‖_F from E‖Rz‖² = ‖R‖²_F, with R = Σ ∇²f·r and G = JᵀΛJ, z ~ N(0, I)."""
    features = expansion.features
    if not isinstance(features, NetworkFeatures):
        return None
    probes = normal((features.num_weights, num_probes), generator, expansion.anchor).to(expansion.anchor.dtype)
    kept = features.vjp(expansion.inputs, expansion.noise_precision() @ features.jvp(expansion.inputs, probes))
    try:
        dropped = features.residual_curvature(expansion.inputs, expansion.residual, probes)
    except RuntimeError as error:
        if "not implemented" not in str(error) and "double backward" not in str(error):
            raise
        return None
    return _ratio(dropped.norm(), kept.norm())


def spaces_gap(model: LinearModel, generator: torch.Generator) -> float:
    """‖z' − z‖ / ‖z‖ in the norm √(zᵀΣ̃z), that of posterior standard deviations, for a random z.

    z' = Σ̃⁻¹ Σ̃ z, with Σ̃ z by function space and Σ̃⁻¹ = V⁻¹ + JᵀΛJ by the products of weight space.
    """
    expansion, posterior = model.expansion, FunctionSpace().infer(model)
    probe = normal((expansion.features.num_weights, 1), generator, expansion.anchor)
    solved = posterior.covariance_matmul(probe)
    pushed = expansion.features.jvp(expansion.inputs, solved)
    curved = expansion.features.vjp(expansion.inputs, expansion.noise_precision() @ pushed).double()
    gap = model.prior.precision.matmul(solved) + curved - probe
    size = (gap * posterior.covariance_matmul(gap)).sum().clamp(min=0)
    return (size / (probe * solved).sum()).sqrt().item()
