"""Regression: the mean, the noise and the ignorance of a network, in the units of y."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, final, overload

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_array
from torch import Tensor

from dnn2gp.estimators.base import GPNetEstimator, standardised, standardiser
from dnn2gp.estimators.settings import EVIDENCE, is_evidence, is_several, number, seed_of
from dnn2gp.likelihoods import GaussianLikelihood
from dnn2gp.support.errors import InputError


class Uncertainty(NamedTuple):
    """A prediction by its parts, each N, or N × K for K targets, in the units of y.

    The standard deviation of y is √(aleatoric² + epistemic²).
    """

    mean: Float[np.ndarray, "N *K"]
    aleatoric: Float[np.ndarray, "N *K"]
    """σ, the standard deviation of the noise: more data do not lessen it."""
    epistemic: Float[np.ndarray, "N *K"]
    """The standard deviation of f(x), what the data do not say: small near them, large away from them."""


@final
class GPNetRegressor(RegressorMixin, GPNetEstimator):
    """A small network that is a Gaussian process: trained, tuned and converted by `fit`.

    X and y are standardised inside. δ, σ and the width are those of the largest evidence of the training data; of
    several first weights (`restarts`) the best is kept. With s the standard deviation of y, and for K targets s_k,

        y = m + s f(x) + σ ε ,      f ~ GP,      log p(y) = log p((y − m)/s) − N Σ_k log s_k

    A y that is constant has s = 1: then the mean is that constant, and σ the smallest that is tried, 1e-4.

    width            hidden units of a layer; of a sequence of widths the one of the largest evidence is taken
    depth            hidden layers; 0 gives a linear model
    activation       "tanh", "sigmoid", "relu", "gelu" or "silu"
    prior_precision  δ of the prior N(0, 1/δ) of each weight of the network on standardised data; "evidence": tuned
    sigma            the noise's standard deviation in the units of y: a number for all targets, or one for each;
                     "evidence": tuned, one σ for all standardised targets, so that target k has σ s_k (fit targets
                     apart if the noise is another share of their spread)
    restarts         networks that are trained, from other first weights and other first δ
    max_rounds       turns of training and tuning
    random_state     seed of the first weights: int, RandomState or None

    After `fit`:

    gp_               the GaussianProcess, from standardised inputs to standardised targets
    network_          the module that it was converted from
    input_scaler_, target_scaler_   the StandardScaler of X and of y
    prior_precision_  δ
    sigma_            σ in the units of y: a number, or K of them if y is N × K
    log_evidence_     log p(y) above, in nats
    width_, tuning_   the width, and the TuningResult with the evidence of each
    n_features_in_, feature_names_in_
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
        self.width = width
        self.depth = depth
        self.activation = activation
        self.prior_precision = prior_precision
        self.sigma = sigma
        self.restarts = restarts
        self.max_rounds = max_rounds
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        """That y may have several columns."""
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
        """The mean of y, N or N × K.

        return_std  also the standard deviation of y, noise included: √(epistemic² + σ²), in the shape of the mean
        return_cov  also the covariance of y among the inputs, noise included: N × N, or N × N × K for K targets
        """
        if return_std and return_cov:
            raise InputError("predict: expected return_std or return_cov; got both. The former is the latter's root.")
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
        """The mean of y, and apart from each other the standard deviations of its noise and of what is not known."""
        prediction = self._predictive(X)
        noise, unknown = (
            self._shaped(part.sqrt().numpy() * self._units) for part in (prediction.aleatoric, prediction.epistemic)
        )
        return Uncertainty(self._in_units(prediction.mean), noise, unknown)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: object = 0) -> np.ndarray:
        """Draws of y, jointly at all inputs: functions of the GP and noise. N × S, or N × K × S for K targets."""
        inputs = self._checked(X)
        generator = torch.Generator().manual_seed(seed_of(random_state))
        functions = self.gp_.sample_functions(n_samples, generator)(inputs)
        noisy = self.gp_.likelihood.sample(functions.flatten(0, 1), 1, generator)[0]
        draws = self._rescaled(noisy).reshape(functions.shape)
        return draws[..., 0].T if self._single else np.moveaxis(draws, 0, -1)

    @property
    def _units(self) -> Float[np.ndarray, " K"]:
        """s of each target."""
        return np.asarray(self.target_scaler_.scale_)

    def _likelihood(self) -> GaussianLikelihood:
        """For standardised targets; open if σ is to be tuned."""
        if is_evidence(self.sigma):
            return GaussianLikelihood()
        given = self.sigma
        sigma = np.array([number("sigma", each) for each in given] if is_several(given) else number("sigma", given))
        if sigma.ndim and len(sigma) != len(self._units):
            raise InputError(f"sigma: expected a number, or {len(self._units)} for as many targets; got {len(sigma)}.")
        return GaussianLikelihood(torch.from_numpy(sigma / self._units))

    def _in_units(self, mean: Float[Tensor, "N K"]) -> Float[np.ndarray, "N *K"]:
        return self._shaped(self._rescaled(mean))

    def _rescaled(self, standardised: Float[Tensor, "N K"]) -> Float[np.ndarray, "N K"]:
        return np.asarray(self.target_scaler_.inverse_transform(standardised.numpy()))

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        """Without the axis of targets, if y had none."""
        return values[..., 0] if self._single else values
