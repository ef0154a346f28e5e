"""Regression with the mean, the noise and the model uncertainty, in the units of y."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, final, overload

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_array
from torch import Tensor

from dnn2gp.estimators.base import (
    EVIDENCE,
    GPNetEstimator,
    is_evidence,
    is_several,
    number,
    seed_of,
    standardised,
    standardiser,
)
from dnn2gp.likelihoods import GaussianLikelihood
from dnn2gp.support.errors import InputError


class Uncertainty(NamedTuple):
    """The parts of a prediction, in the units of y: each of shape N, or N × K for K targets.

    The standard deviation of y is √(aleatoric² + epistemic²).
    """

    mean: Float[np.ndarray, "N *K"]
    aleatoric: Float[np.ndarray, "N *K"]
    """The standard deviation σ of the noise, which more data does not reduce."""
    epistemic: Float[np.ndarray, "N *K"]
    """The standard deviation of f(x): small near the data, large far from it."""


@final
class GPNetRegressor(RegressorMixin, GPNetEstimator):
    """A regressor that trains a small network, tunes it, and converts it to a Gaussian process.

    X and y are standardised internally. δ, σ and the width maximise the evidence of the training data. With the mean m
    and the standard deviation s of y, and s_k for each of K targets,

        y = m + s f(x) + σ ε ,      f ~ GP,      log p(y) = log p((y − m)/s) − N Σ_k log s_k

    A constant y has s = 1: the mean is then that constant, and σ is 1e-4, the smallest value that is tried.

    Args:
        width: Hidden units per layer. Of several widths, the one with the largest evidence is chosen.
        depth: Hidden layers; 0 gives a linear model.
        activation: "tanh", "sigmoid", "relu", "gelu" or "silu".
        prior_precision: δ of the prior N(0, 1/δ) of each weight, for standardised data; "evidence" tunes it.
        sigma: Standard deviation of the noise in the units of y, for all targets or one for each. "evidence" tunes one
            σ for all standardised targets, so that target k has the noise σ s_k. If the noise is not the same share of
            s_k for all targets, fit them separately.
        restarts: Networks to train from different initial weights and δ; the best is kept.
        max_rounds: Largest number of rounds, each of which trains the weights and then tunes δ and σ.
        random_state: Seed of the initial weights: int, RandomState or None.

    Attributes:
        gp_: The GaussianProcess, from standardised inputs to standardised targets.
        network_: The module that it was converted from.
        input_scaler_, target_scaler_: The StandardScaler of X and of y.
        prior_precision_: δ.
        sigma_: σ in the units of y: a number, or K numbers if y is N × K.
        log_evidence_: log p(y) as above, in nats.
        width_: The chosen width.
        tuning_: The TuningResult with the evidence of each width.
        n_features_in_, feature_names_in_: As in every estimator.
    """

    target_scaler_: StandardScaler
    sigma_: float | Float[np.ndarray, " K"]

    def __init__(
        self,
        width: object = 20,
        depth: object = 1,
        activation: object = "tanh",
        prior_precision: object = EVIDENCE,
        sigma: object = EVIDENCE,
        restarts: object = 4,
        max_rounds: object = 20,
        random_state: object = 0,
    ) -> None:
        super().__init__(width, depth, activation, prior_precision, restarts, max_rounds, random_state)
        self.sigma = sigma

    def __sklearn_tags__(self) -> Any:
        """y may have several columns."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> GPNetRegressor:
        """Train and tune on N × D inputs and N, or N × K, targets."""
        settings = self._settings()
        inputs, given = self._validated(X, y, multi_output=True)
        values = np.asarray(check_array(given, ensure_2d=False, dtype="float64", input_name="y"))
        columns = values.reshape(len(values), -1)
        self._single = values.ndim == 1
        self.target_scaler_ = standardiser(columns, "y")
        log_unit = len(columns) * float(np.log(self._units).sum())
        targets = standardised(columns, self.target_scaler_)
        self._train(inputs, targets, columns.shape[1], self._likelihood(), settings, log_unit)
        likelihood = self.gp_.likelihood
        assert isinstance(likelihood, GaussianLikelihood)
        sigma = likelihood.sigma.numpy() * self._units
        self.sigma_ = float(sigma[0]) if self._single else sigma
        return self

    @overload
    def predict(self, X: Any, return_std: Literal[False] = False, return_cov: Literal[False] = False) -> np.ndarray: ...

    @overload
    def predict(
        self, X: Any, return_std: Literal[True], return_cov: Literal[False] = False
    ) -> tuple[np.ndarray, np.ndarray]: ...

    @overload
    def predict(
        self, X: Any, return_std: Literal[False] = False, *, return_cov: Literal[True]
    ) -> tuple[np.ndarray, np.ndarray]: ...

    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The mean of y, of shape N or N × K.

        Args:
            X: N × D inputs.
            return_std: Also return the standard deviation of y, √(epistemic² + σ²), in the shape of the mean.
            return_cov: Also return the covariance of y between the inputs, including noise: N × N, or N × N × K for K
                targets.
        """
        if return_std and return_cov:
            raise InputError(
                "predict: expected return_std or return_cov; got both. The diagonal of the covariance holds the "
                "variances."
            )
        if return_cov:
            inputs = self._checked(X)
            mean = self._in_units(self.gp_.predict(inputs).mean)
            own = torch.einsum("nkmk->nmk", self.gp_.covariance(inputs)).numpy() * self._units**2
            noise = np.eye(len(inputs))[..., None] * np.square(self.sigma_)
            return mean, self._shaped(own + noise)
        prediction = self._predictive(X)
        mean = self._in_units(prediction.mean)
        return (mean, self._shaped(prediction.std.numpy() * self._units)) if return_std else mean

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """The mean of y, and separately the standard deviations of the noise and of f(x)."""
        prediction = self._predictive(X)
        noise, unknown = (
            self._shaped(part.sqrt().numpy() * self._units) for part in (prediction.aleatoric, prediction.epistemic)
        )
        return Uncertainty(self._in_units(prediction.mean), noise, unknown)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: object = 0) -> np.ndarray:
        """Joint samples of y at all inputs: functions of the GP plus noise. N × S, or N × K × S for K targets."""
        inputs = self._checked(X)
        generator = torch.Generator().manual_seed(seed_of(random_state))
        functions = self.gp_.sample_functions(n_samples, generator)(inputs)
        noisy = self.gp_.likelihood.sample(functions.flatten(0, 1), 1, generator)[0]
        draws = self._rescaled(noisy).reshape(functions.shape)
        return draws[..., 0].T if self._single else np.moveaxis(draws, 0, -1)

    @property
    def _units(self) -> Float[np.ndarray, " K"]:
        """The standard deviation s of each target."""
        return np.asarray(self.target_scaler_.scale_)

    def _likelihood(self) -> GaussianLikelihood:
        """The likelihood of standardised targets; its σ is open if it is to be tuned."""
        if is_evidence(self.sigma):
            return GaussianLikelihood()
        given = self.sigma
        sigma = np.array([number("sigma", each) for each in given] if is_several(given) else number("sigma", given))
        if sigma.ndim and len(sigma) != len(self._units):
            raise InputError(
                f"sigma: expected a number, or one for each of {len(self._units)} targets; got {len(sigma)}."
            )
        return GaussianLikelihood(torch.from_numpy(sigma / self._units))

    def _in_units(self, mean: Float[Tensor, "N K"]) -> Float[np.ndarray, "N *K"]:
        return self._shaped(self._rescaled(mean))

    def _rescaled(self, standardised: Float[Tensor, "N K"]) -> Float[np.ndarray, "N K"]:
        return np.asarray(self.target_scaler_.inverse_transform(standardised.numpy()))

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        """Drop the axis of targets if y had none."""
        return values[..., 0] if self._single else values
