"""The calibration of a GP: factors that f and the noise are multiplied by before y is predicted."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import final

from dnn2gp.likelihoods import ClassificationLikelihood, GaussianLikelihood, Likelihood
from dnn2gp.support.errors import InputError
from dnn2gp.support.numbers import number_from_zero, positive_number


@final
@dataclass(frozen=True)
class Calibration:
    """f ~ N(m/τ, a V/τ²) in place of the posterior N(m, V), and noise with standard deviation s σ in place of σ."""

    scale: float = 1.0
    """a ≥ 0, the factor of the covariance of f. With 0, predictions are those of the posterior mean."""
    temperature: float = 1.0
    """τ > 0, by which f is divided; for classification."""
    noise: float = 1.0
    """s > 0, the factor of the standard deviation of the noise; for a Gaussian likelihood."""
    scores: float = 1.0
    """The factor of the covariance of f in entropies and mutual information, which find unfamiliar inputs."""

    def __post_init__(self) -> None:
        """Store the numbers as floats, if they are finite and in range."""
        object.__setattr__(self, "scale", number_from_zero("scale", self.scale))
        for name in ("temperature", "noise", "scores"):
            object.__setattr__(self, name, positive_number(name, getattr(self, name)))

    def __str__(self) -> str:
        """The numbers that are not 1, to three digits."""
        numbers = ((field.name, getattr(self, field.name)) for field in fields(self))
        return f"Calibration({', '.join(f'{name}={value:.3g}' for name, value in numbers if value != 1)})"

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing."""
        return self.scale == self.temperature == self.noise == self.scores == 1

    def applied_to(self, likelihood: Likelihood) -> Likelihood:
        """The likelihood with its noise calibrated: itself, unless it is Gaussian and s ≠ 1.

        A temperature belongs to classification and a factor of the noise to Gaussian noise; for others they are errors.
        """
        if self.temperature != 1 and not isinstance(likelihood, ClassificationLikelihood):
            raise InputError(
                f"temperature: expected 1 for {type(likelihood).__name__}; got {self.temperature}. A temperature "
                "divides logits: leave it out for likelihoods other than those for classification."
            )
        if self.noise != 1 and not isinstance(likelihood, GaussianLikelihood):
            raise InputError(
                f"noise: expected 1 for {type(likelihood).__name__}; got {self.noise}. Only a GaussianLikelihood has a "
                "noise to scale."
            )
        return likelihood.scaled(self.noise) if isinstance(likelihood, GaussianLikelihood) else likelihood


NONE = Calibration()
"""The calibration that changes nothing."""
