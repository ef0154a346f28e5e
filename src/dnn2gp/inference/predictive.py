"""Appendix B: from the latent function f over transformed outputs ỹ back to the user's outputs y."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.inference.answers import Answers
from dnn2gp.inference.calibration import NONE, Calibration
from dnn2gp.inference.split import Split
from dnn2gp.likelihoods import CategoricalLikelihood, ClassificationLikelihood, Likelihood
from dnn2gp.network.inputs import all_finite
from dnn2gp.support.errors import IllConditionedError, InputError, NotFiniteError, NotPositiveDefiniteError
from dnn2gp.support.memory import default_budget, require
from dnn2gp.support.numbers import whole_number
from dnn2gp.support.processes import Team
from dnn2gp.support.randomness import normal, own_generator

# The largest error of the variance of a difference between logits, relative to that variance, or to 1 if it is smaller.
_LOST = 1e-2


@final
@dataclass(frozen=True, eq=False)
class SiteCovariance:
    """At training examples: what leaving one out needs, if f is known for some classes only (`top_classes`)."""

    covariance: Float[Tensor, "N q q"]
    """The joint covariance of `split.functionals`, rᵀf and Sᵀf, where r and S belong to the example."""
    mean: Float[Tensor, "N K"]
    """Where the logit of all other classes is linearised."""


@dataclass(frozen=True, eq=False)
class Latent:
    """f(x) ~ N(f_w(x) + J(x)(μ − w), J(x) Σ̃ J(x)ᵀ), input by input."""

    outputs: Float[Tensor, "N K"]
    """f_w(x), the output of the network itself."""
    shift: Float[Tensor, "N K"]
    """J(x)(μ − w), zero at a minimum."""
    covariance: Float[Tensor, "N C C"]
    """J(x) Σ̃ J(x)ᵀ; with a `split`, the covariance of the logits of T and of one for all other classes."""
    error: Float[Tensor, " N"]
    """The relative standard deviation of the trace of the covariance; zero if inference is exact."""
    split: Split | None = None
    """The most probable classes T of each input (`top_classes`); None if the covariance is that of all outputs."""
    sites: SiteCovariance | None = None
    """At training examples with a `split`."""

    def gathered(self, team: Team) -> Latent:
        """f at the inputs of all processes."""
        return self._each(team.gathered)

    def take(self, count: int) -> Latent:
        """f at the first inputs."""
        return self._each(lambda tensor: tensor[:count])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Latent:
        """With every tensor changed in the same way, without what only leave-one-out needs."""
        split = None if self.split is None else self.split.each(change)
        return Latent(change(self.outputs), change(self.shift), change(self.covariance), change(self.error), split)

    def finite(self) -> Latent:
        """This, unless a number in it is NaN, or overflows in the dtype of the outputs."""
        variances = self.covariance.diagonal(dim1=1, dim2=2)
        for name, values in (("output", self.outputs), ("mean", self.shift), ("variance", variances)):
            finite(values.to(self.outputs.dtype), f"{name} of f")
        return self


def finite(values: Float[Tensor, "N ..."], what: str) -> Tensor:
    """The values at N inputs, unless one of them is NaN or overflows."""
    if not all_finite(values):
        row = int((~values.isfinite()).reshape(len(values), -1).any(1).nonzero()[0])
        raise NotFiniteError(
            f"The {what} at input {row} is not finite in {str(values.dtype).removeprefix('torch.')}. Check the scale "
            "of that input, use float64, or choose a larger prior precision δ or noise σ."
        )
    return values


class JoinedLatent:
    """Several chunks of inputs as one, each copied to its place at once (see `dnn2gp.features.budget.chunked.joined`).

    Chunks that carry gradients are kept until the end.
    """

    def __init__(self, count: int) -> None:
        """For so many inputs."""
        self.count = count
        self._whole: tuple[Tensor, ...] = ()
        self._kept: list[tuple[Tensor, ...]] = []

    def add(self, part: slice, latent: Latent) -> None:
        """The next chunk."""
        own = latent.outputs, latent.shift, latent.covariance, latent.error
        first = not self._whole and any(each.requires_grad for each in own)
        if self._kept or first or len(latent.outputs) == self.count:
            self._kept.append(own)
            return
        self._whole = self._whole or tuple(each.new_empty(self.count, *each.shape[1:]) for each in own)
        for whole, each in zip(self._whole, own, strict=True):
            whole[part] = each

    def result(self) -> Latent:
        """All inputs."""
        if len(self._kept) == 1:
            outputs, shift, covariance, error = self._kept[0]
        else:
            joined = self._whole or (torch.cat(each) for each in zip(*self._kept, strict=True))
            outputs, shift, covariance, error = joined
        return Latent(outputs, shift, covariance, error)


class Moments(ABC):
    """Mean and two kinds of variance of y at N inputs, each in the shape of the network's outputs."""

    output_shape: tuple[int, ...]

    @property
    @abstractmethod
    def mean(self) -> Float[Tensor, "N *shape"]:
        """E y."""

    @property
    @abstractmethod
    def aleatoric(self) -> Float[Tensor, "N *shape"]:
        """The variance of the labels."""

    @property
    @abstractmethod
    def epistemic(self) -> Float[Tensor, "N *shape"]:
        """The variance of what the model does not know."""

    @property
    def variance(self) -> Float[Tensor, "N *shape"]:
        """Aleatoric plus epistemic variance."""
        return finite(self.aleatoric + self.epistemic, "variance of y")

    @property
    def std(self) -> Float[Tensor, "N *shape"]:
        """The square root of `variance`."""
        return self.variance.sqrt()

    def _shaped(self, values: Float[Tensor, "N K"]) -> Tensor:
        return finite(values, "prediction of y").reshape(len(values), *self.output_shape)


@dataclass(frozen=True, eq=False)
class Predictive(Moments, Answers):
    """The predictive distribution at N inputs, Eqs. (44) and (48) for any likelihood.

    With f = f_w(x), D = ∂h/∂f and ỹ ~ N(Jμ, Λ⁻¹ + JΣ̃Jᵀ), the map y = h(f) + D (ỹ − Jw) gives

        mean        h(f) + D J (μ − w)                  (h(f) at a minimum, where μ = w)
        aleatoric   Cov(y | f)          = Λ (canonical links),  σ² (Gaussian)
        epistemic   D J Σ̃ Jᵀ Dᵀ         = Λ J Σ̃ Jᵀ Λ,          J Σ̃ Jᵀ

    The fields `outputs`, `shift` and `latent_covariance` are those of the exact posterior of f, whatever the
    calibration. All properties and methods are computed from the calibrated f, whose fields are those of `calibrated`;
    only entropies are not (see `Answers`).
    """

    likelihood: Likelihood
    output_shape: tuple[int, ...]
    outputs: Float[Tensor, "N K"]
    """f_w(x), the network itself."""
    shift: Float[Tensor, "N K"]
    """J(x)(μ − w), zero at a minimum."""
    latent_covariance: Float[Tensor, "N K K"]
    """J Σ̃ Jᵀ, the covariance of f: in float64 if it was computed so.

    Softmax ignores a constant added to all logits, and only the prior limits the variance of that constant. With a
    small δ, it is so large that rounding to float32 would hide all the rest, so it is removed in float64, and only
    the results are rounded to the dtype of the outputs.
    """
    noise_known: bool = True
    """Whether the likelihood defines the noise at these inputs (not if it was given for each training example)."""
    calibration: Calibration = NONE
    """a, τ and s of f ~ N(m/τ, a V/τ²) and the noise s σ; by default, nothing is changed."""
    latent_covariance_error: Float[Tensor, " N"] | None = None
    """The relative standard deviation of the trace of `latent_covariance`, if inference estimated it (`Iterative`)."""

    def __post_init__(self) -> None:
        self.calibration.applied_to(self.likelihood)
        if isinstance(self.likelihood, CategoricalLikelihood):
            check_differences(self.latent_covariance.detach())

    def __repr__(self) -> str:
        return f"Predictive({len(self.outputs)} inputs, outputs of shape {self.output_shape})"

    @property
    def latent_mean(self) -> Float[Tensor, "N K"]:
        """f_w(x) + J(x)(μ − w), the mean of the linearised network."""
        own = self.calibrated
        return own.outputs + own.shift

    @property
    def calibrated(self) -> Predictive:
        """This with the calibration applied to the fields: m/τ, a V/τ² and s σ. Itself, if there is none."""
        chosen = self.calibration
        if chosen.is_identity:
            return self
        return replace(
            self,
            likelihood=chosen.applied_to(self.likelihood),
            outputs=self.outputs / chosen.temperature,
            shift=self.shift / chosen.temperature,
            latent_covariance=self.latent_covariance * (chosen.scale / chosen.temperature**2),
            calibration=NONE,
        )

    @property
    def uncalibrated(self) -> Predictive:
        """This without its calibration: the exact posterior. Itself, if there is none."""
        return self if self.calibration.is_identity else replace(self, calibration=NONE)

    @property
    def scored(self) -> Predictive:
        """f ~ N(m, a V) with the scale a of scores, which entropies and mutual information are computed from."""
        scale, own = self.calibration.scores, self.uncalibrated
        return own if scale == 1 else replace(own, latent_covariance=own.latent_covariance * scale)

    @property
    def mean(self) -> Float[Tensor, "N *shape"]:
        """h(f) + D J (μ − w), in the shape of the network's outputs."""
        own = self.calibrated
        return self._shaped(own.likelihood.inverse_map(own.shift, own.outputs, torch.zeros_like(own.shift)))

    @property
    def aleatoric_covariance(self) -> Float[Tensor, "N K K"]:
        """Cov(y | f): the noise of the labels."""
        self._check_noise()
        own = self.calibrated
        return finite(own.likelihood.covariance(own.outputs), "noise of y")

    @property
    def epistemic_covariance(self) -> Float[Tensor, "N K K"]:
        """D J Σ̃ Jᵀ Dᵀ: what the model does not know."""
        own = self.calibrated
        slope = own.likelihood.mean_jacobian(own.outputs.to(own.latent_covariance.dtype))
        return finite((slope @ own.latent_covariance @ slope.mT).to(self.outputs.dtype), "epistemic covariance of y")

    @property
    def aleatoric(self) -> Float[Tensor, "N *shape"]:
        """The aleatoric variance of each output."""
        return self._shaped(self.aleatoric_covariance.diagonal(dim1=1, dim2=2))

    @property
    def epistemic(self) -> Float[Tensor, "N *shape"]:
        """The epistemic variance of each output."""
        return self._shaped(self.epistemic_covariance.diagonal(dim1=1, dim2=2))

    def delta(self) -> Float[Tensor, "N *shape"]:
        """E[h(f)] ≈ h(E f): the delta method to first order."""
        return self._shaped(self.likelihood.mean(self.latent_mean))

    def probit(self) -> Float[Tensor, "N *shape"]:
        """E[h(f)] by MacKay's probit approximation, for classification."""
        if not isinstance(self.likelihood, ClassificationLikelihood):
            raise InputError(
                f"probit: expected a likelihood for classification; got {type(self.likelihood).__name__}. Use "
                "delta() or monte_carlo()."
            )
        covariance = self.calibrated.latent_covariance
        averaged = self.likelihood.probit(self.latent_mean.to(covariance.dtype), covariance)
        return self._shaped(averaged.to(self.outputs.dtype))

    def monte_carlo(
        self, num_samples: int = 1000, generator: torch.Generator | None = None
    ) -> Float[Tensor, "N *shape"]:
        """E[h(f)] ≈ (1/S) Σ_s h(f_s), f_s ~ N(E f, J Σ̃ Jᵀ)."""
        samples = self._wide_samples(num_samples, generator)
        means = self.likelihood.mean(samples.flatten(0, 1)).unflatten(0, samples.shape[:2])
        return self._shaped(means.mean(0).to(self.outputs.dtype))

    def sample_latent(self, num_samples: int, generator: torch.Generator | None = None) -> Float[Tensor, "S N K"]:
        """f ~ N(E f, J Σ̃ Jᵀ), independently for each input (for samples of whole functions, see GaussianProcess)."""
        return self._wide_samples(num_samples, generator).to(self.outputs.dtype)

    def _wide_samples(self, num_samples: int, generator: torch.Generator | None) -> Float[Tensor, "S N K"]:
        """f, in the dtype of its covariance."""
        num_samples = whole_number("num_samples", num_samples)
        size = 3 * num_samples * self.outputs.numel() * self.latent_covariance.element_size()
        require(size, default_budget(), f"Drawing {num_samples} samples", "Draw fewer at a time.")
        root = psd_root(self.calibrated.latent_covariance)
        noise = normal((num_samples, *self.outputs.shape, 1), generator, root).to(root.dtype)
        return self.latent_mean + (root @ noise).squeeze(-1)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """y ~ p(y | f) with f ~ N(E f, J Σ̃ Jᵀ): S × N labels, or S × N outputs in the shape of the network's."""
        self._check_noise()
        generator = own_generator(generator, self.outputs.device)
        latents = self.sample_latent(num_samples, generator)
        likelihood = self.calibrated.likelihood
        draws = torch.cat([likelihood.sample(f, 1, generator) for f in latents])
        whole = draws.shape[2:] == latents.shape[2:]
        return draws.reshape(*draws.shape[:2], *self.output_shape) if whole else draws

    def _check_noise(self) -> None:
        if not self.noise_known:
            raise InputError(
                "likelihood: the noise of this GP was given for each training example, so it is unknown at other "
                "inputs. Pass the noise of these inputs: predict(inputs, "
                "likelihood=GaussianLikelihood(sigma_for_these_inputs))."
            )


def check_differences(covariance: Float[Tensor, "N K K"]) -> None:
    """Raise if the variance of a constant added to all logits covers the variance of a difference between them.

    The former is limited by the prior alone, and its rounding error enters the latter. An error that is small beside 1
    changes no probability.
    """
    lost = torch.finfo(covariance.dtype).eps / 2 * covariance.abs().amax((1, 2))
    rows = (lost > _LOST).nonzero()[:, 0]
    if len(rows) == 0:
        return
    classes = torch.eye(covariance.shape[1], dtype=covariance.dtype, device=covariance.device)
    steps = classes[1:] - classes[:1]
    smallest = torch.linalg.eigvalsh(steps @ covariance[rows] @ steps.mT)[:, 0]
    bad = lost[rows] > _LOST * smallest.clamp(min=1.0)
    if bad.any():
        row = int(rows[bad][0])
        raise IllConditionedError(
            f"The variance of the logits at input {row} is {covariance[row].abs().max().item():.2g}, mostly that of a "
            "constant that is added to all of them and changes no probability. Its rounding error, about "
            f"{lost[row].item():.1g}, covers the variance of their differences. Use a larger prior precision δ."
        )


def psd_root(covariance: Float[Tensor, "*B K K"]) -> Float[Tensor, "*B K K"]:
    """C^{½} from the eigenvalues. Negative ones within rounding count as zero; others are an error."""
    values, vectors = torch.linalg.eigh(covariance)
    floor = -1e3 * torch.finfo(covariance.dtype).eps * values.abs().amax(-1)
    if (values[..., 0] < floor).any():
        raise NotPositiveDefiniteError(
            f"A predictive covariance has eigenvalue {values.min().item():.3g} (largest {values.max().item():.3g}). "
            "Use float64, or raise the prior precision δ."
        )
    return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
