"""What users read off a prediction: probabilities, intervals, log probabilities, and scores of a classifier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dnn2gp.inference.averages import Averages, ClassAverages, averages
from dnn2gp.inference.intervals import central_interval
from dnn2gp.likelihoods import BernoulliLikelihood, CategoricalLikelihood, Likelihood
from dnn2gp.support.errors import InputError
from dnn2gp.support.numbers import positive_number


class Answers(ABC):
    """Averages over f ~ N(m, C), computed in float64 and returned in the dtype of the network's outputs.

    All are deterministic and, except for intervals of counts and of custom likelihoods, differentiable. Scores use two
    distributions of f. A calibration sharpens probabilities but hides the signs of unfamiliar inputs, so
    `max_probability` uses the calibrated f, and entropies have a scale of their own (`scored`).
    `prediction.calibrated.entropy` and `prediction.uncalibrated.entropy` are those of the other distributions.
    """

    likelihood: Likelihood
    output_shape: tuple[int, ...]
    outputs: Float[Tensor, "N K"]
    latent_covariance: Float[Tensor, "N C C"]

    @property
    @abstractmethod
    def latent_mean(self) -> Float[Tensor, "N K"]:
        """E f."""

    @property
    @abstractmethod
    def calibrated(self) -> Answers:
        """The same with the calibration applied to the fields."""

    @property
    @abstractmethod
    def uncalibrated(self) -> Answers:
        """The same without a calibration."""

    @property
    @abstractmethod
    def scored(self) -> Answers:
        """The same with the covariance that entropies are computed from, without a calibration."""

    @property
    def probabilities(self) -> Float[Tensor, "N *shape"]:
        """E h(f), for classification: N × K probabilities of the classes, or P(y = 1) in the shape of the outputs.

        Binary outputs and two classes: to rounding, for any variance (`logistic_normal`). More classes: the average of
        softmax over 2048 Sobol points along the principal axes of the logits' differences.
        """
        self._check_classes("probabilities")
        return self._shaped_answer(self.calibrated._probabilities())

    @property
    def max_probability(self) -> Float[Tensor, "N *shape"]:
        """max_k E p_k, the probability of the predicted class: small for likely mistakes."""
        p = self.probabilities
        return p.amax(-1) if isinstance(self.likelihood, CategoricalLikelihood) else torch.maximum(p, 1 - p)

    @property
    def entropy(self) -> Float[Tensor, "N *shape"]:
        """H(E p), in nats: everything that is uncertain about the class. Of `scored`."""
        return self._entropy_answer(self.scored._entropies("entropy")[0])

    @property
    def expected_entropy(self) -> Float[Tensor, "N *shape"]:
        """E H(p), in nats: how uncertain the class is even if f were known. Of `scored`."""
        return self._entropy_answer(self.scored._entropies("expected_entropy")[1])

    @property
    def mutual_information(self) -> Float[Tensor, "N *shape"]:
        """H(E p) − E H(p) ≥ 0, in nats: what the class would say about f. Of `scored`.

        Negative differences, which rounding leaves where f is certain, count as 0.
        """
        of_average, expected = self.scored._entropies("mutual_information")
        return self._entropy_answer((of_average - expected).clamp(min=0))

    def interval(self, level: float = 0.9) -> tuple[Float[Tensor, "N *shape"], Float[Tensor, "N *shape"]]:
        """The quantiles (1 ∓ level)/2 of y, noise included, for regression and counts.

        In closed form for Gaussian noise; whole numbers for counts, by quadrature; from 4096 fixed draws for others.
        """
        level = positive_number("level", level)
        if level >= 1:
            raise InputError(f"level: expected a number between 0 and 1; got {level}. Use 0.9 for 90 %.")
        if isinstance(self.likelihood, CategoricalLikelihood | BernoulliLikelihood):
            raise InputError(
                f"interval: {type(self.likelihood).__name__} predicts classes, which have no intervals. Use "
                "prediction.probabilities."
            )
        self._check_noise()
        lower, upper = self.calibrated._interval(level)
        return self._shaped_answer(lower), self._shaped_answer(upper)

    def log_prob(self, targets: object) -> Float[Tensor, " N"]:
        """log E[p(y | f)] of each example, in nats; for several outputs, that of all of them together.

        Closed form for Gaussian noise, one binary output and two classes. Quadrature for other likelihoods of one
        output; 2048 Sobol points for several.
        """
        self._check_noise()
        own = self.calibrated
        y = own.likelihood.targets_for(targets, len(self.outputs), self.output_shape, self.outputs.dtype)
        return own._log_prob(y).to(self.outputs.dtype)

    @abstractmethod
    def _check_noise(self) -> None:
        """Raise an error if the noise at these inputs is unknown."""

    def _probabilities(self) -> Float[Tensor, "N K"]:
        return self._class_averages().probabilities()

    def _entropies(self, name: str) -> tuple[Float[Tensor, "N *K"], Float[Tensor, "N *K"]]:
        self._check_classes(name)
        return self._class_averages().entropies()

    def _interval(self, level: float) -> tuple[Tensor, Tensor]:
        return central_interval(self.likelihood, level, self.latent_mean, self.latent_covariance)

    def _log_prob(self, y: Shaped[Tensor, "N ..."]) -> Float[Tensor, " N"]:
        return self._averages().log_prob(y)

    def _class_averages(self) -> ClassAverages:
        found = self._averages()
        assert isinstance(found, ClassAverages)
        return found

    def _averages(self) -> Averages:
        return averages(self.likelihood, self.latent_mean, self.latent_covariance)

    def _check_classes(self, name: str) -> None:
        if not isinstance(self.likelihood, CategoricalLikelihood | BernoulliLikelihood):
            raise InputError(
                f"{name}: expected a CategoricalLikelihood or a BernoulliLikelihood; got "
                f"{type(self.likelihood).__name__}. Use prediction.interval(0.9), .mean and .std."
            )

    def _shaped_answer(self, values: Float[Tensor, "N T"]) -> Tensor:
        """In the dtype of the outputs, and in their shape if there is one value for each of them."""
        values = values.to(self.outputs.dtype)
        whole = values.shape[1] == prod(self.output_shape)
        return values.reshape(len(values), *self.output_shape) if whole else values

    def _entropy_answer(self, values: Float[Tensor, "N *K"]) -> Tensor:
        values = values.to(self.outputs.dtype)
        return values.reshape(len(values), *self.output_shape) if values.ndim == 2 else values
