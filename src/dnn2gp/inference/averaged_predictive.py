"""Appendix B.3: predictions of a training step with S samples, the average of S maps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log, prod

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dnn2gp.inference.averages import entropy
from dnn2gp.inference.predictive import Predictive, finite
from dnn2gp.likelihoods import ClassificationLikelihood
from dnn2gp.support.randomness import own_generator


@dataclass(frozen=True, eq=False)
class AveragedPredictive(Predictive):
    """With S samples w_s of q_t there are S maps y_s = h(f_s) + D_s (ỹ_s − J_s μ_t), and y is their average.

        mean        (1/S) Σ_s [h(f_s) + D_s J_s (μ − μ_t)]
        aleatoric   (1/S) Σ_s Cov(y | f_s)
        epistemic   (1/S²) Σ_{s,s'} D_s J_s Σ̃ J_{s'}ᵀ D_{s'}ᵀ        the variance of the average of S correlated maps

    Averages of a nonlinear h (`probabilities`, `delta`, `probit`, `monte_carlo`) are those of the maps, averaged; so is
    p(y) in `log_prob` of a classifier. Intervals and `log_prob` of other likelihoods are those of the averaged f.
    `outputs`, `shift` and `latent_covariance` hold the S maps side by side: N × SK, and N × SK × SK.
    """

    def __repr__(self) -> str:
        sizes = f"{len(self.maps)} maps, {len(self.outputs)} inputs"
        return f"AveragedPredictive({sizes}, outputs of shape {self.output_shape})"

    @cached_property
    def maps(self) -> tuple[Predictive, ...]:
        """The prediction of each map alone."""
        K = prod(self.output_shape)
        parts = [slice(start, start + K) for start in range(0, self.outputs.shape[1], K)]
        return tuple(
            Predictive(
                self.likelihood,
                self.output_shape,
                self.outputs[:, part],
                self.shift[:, part],
                self.latent_covariance[:, part, part],
                self.noise_known,
                self.calibration,
            )
            for part in parts
        )

    @property
    def latent_mean(self) -> Float[Tensor, "N K"]:
        """The average of the linearised networks."""
        return self._average.latent_mean

    @property
    def mean(self) -> Float[Tensor, "N *shape"]:
        """The average of the maps' means."""
        return torch.stack([each.mean for each in self.maps]).mean(0)

    @property
    def aleatoric_covariance(self) -> Float[Tensor, "N K K"]:
        """The average noise of the labels."""
        return torch.stack([each.aleatoric_covariance for each in self.maps]).mean(0)

    @property
    def epistemic_covariance(self) -> Float[Tensor, "N K K"]:
        """The covariance of the average."""
        own = self.calibrated
        outputs = [each.calibrated.outputs.to(own.latent_covariance.dtype) for each in self.maps]
        slopes = [own.likelihood.mean_jacobian(each) for each in outputs]
        slope = torch.cat(slopes, 2) / len(slopes)
        return finite((slope @ own.latent_covariance @ slope.mT).to(self.outputs.dtype), "epistemic covariance of y")

    def delta(self) -> Float[Tensor, "N *shape"]:
        """The average of h(E f_s)."""
        return torch.stack([each.delta() for each in self.maps]).mean(0)

    def probit(self) -> Float[Tensor, "N *shape"]:
        """The average of the maps' probit approximations, for classification."""
        return torch.stack([each.probit() for each in self.maps]).mean(0)

    def monte_carlo(
        self, num_samples: int = 1000, generator: torch.Generator | None = None
    ) -> Float[Tensor, "N *shape"]:
        """The average of the maps' E[h(f_s)], `num_samples` for each."""
        generator = own_generator(generator, self.outputs.device)
        return torch.stack([each.monte_carlo(num_samples, generator) for each in self.maps]).mean(0)

    def sample_latent(self, num_samples: int, generator: torch.Generator | None = None) -> Float[Tensor, "S N K"]:
        """(1/S) Σ_s f_s, with the maps drawn jointly and the inputs independently."""
        return self._average.sample_latent(num_samples, generator)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """y ~ p(y | f), where f is the average of jointly drawn maps."""
        return self._average.sample(num_samples, generator)

    @cached_property
    def _average(self) -> Predictive:
        """The average of the linearised networks as one."""
        apart = len(self.maps), prod(self.output_shape)
        outputs, shift = (each.unflatten(1, apart).mean(1) for each in (self.outputs, self.shift))
        covariance = self.latent_covariance.unflatten(2, apart).mean(2).unflatten(1, apart).mean(1)
        settings = self.noise_known, self.calibration
        return Predictive(self.likelihood, self.output_shape, outputs, shift, covariance, *settings)

    def _probabilities(self) -> Float[Tensor, "N K"]:
        return torch.stack([each._probabilities() for each in self.maps]).mean(0)

    def _entropies(self, name: str) -> tuple[Float[Tensor, "N *K"], Float[Tensor, "N *K"]]:
        """The entropy of the averaged probabilities, and the average of the maps' expected entropies."""
        expected = torch.stack([each._entropies(name)[1] for each in self.maps]).mean(0)
        p = self._probabilities()
        if expected.ndim == 1:
            return entropy(p), expected
        return entropy(torch.stack([p, 1 - p], -1)), expected

    def _interval(self, level: float) -> tuple[Tensor, Tensor]:
        return self._average._interval(level)

    def _log_prob(self, y: Shaped[Tensor, "N ..."]) -> Float[Tensor, " N"]:
        """The log of the maps' average probability; without classes, that of the average of the maps."""
        if not isinstance(self.likelihood, ClassificationLikelihood):
            return self._average._log_prob(y)
        return torch.stack([each._log_prob(y) for each in self.maps]).logsumexp(0) - log(len(self.maps))
