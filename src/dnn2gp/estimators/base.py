"""What both estimators do alike: training and tuning by the evidence, converting, pickling."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Shaped
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from dnn2gp.estimators.settings import Settings
from dnn2gp.evidence.tuning_result import EVIDENCE, Trial, TuningResult
from dnn2gp.gp.convert import convert
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.minimum import at_minimum
from dnn2gp.gp.storage import load, save
from dnn2gp.inference.predictive import Predictive
from dnn2gp.likelihoods import GaussianLikelihood, Likelihood
from dnn2gp.network.mlp import mlp
from dnn2gp.support.errors import EvidenceWarning, InputError, NotAMinimumWarning, warn_user
from dnn2gp.tune.restarts import Fitted, fit_restarts

_GP, _FILE = "gp_", "gp.safetensors"


class GPNetEstimator(BaseEstimator, ABC):
    """A multi-layer perceptron in float64 on standardised data, tuned by the evidence, that predicts as its GP."""

    width: object
    depth: object
    activation: object
    prior_precision: object
    restarts: object
    max_rounds: object
    random_state: object

    gp_: GaussianProcess
    network_: nn.Module
    prior_precision_: float
    log_evidence_: float
    width_: int
    tuning_: TuningResult
    input_scaler_: StandardScaler
    n_features_in_: int

    @abstractmethod
    def fit(self, X: Any, y: Any) -> GPNetEstimator:
        """Train and tune on N × D inputs and their targets."""

    def _validated(self, X: Any, y: Any, *, multi_output: bool = False) -> tuple[Float[np.ndarray, "N D"], np.ndarray]:
        """X, in float64, and y, as scikit-learn checks them; notes the number of features and their names."""
        found = validate_data(self, X, y, dtype=np.float64, multi_output=multi_output)
        return cast(tuple[np.ndarray, np.ndarray], found)

    def _settings(self) -> Settings:
        """The parameters that both estimators have."""
        return Settings.checked(
            self.width,
            self.depth,
            self.activation,
            self.prior_precision,
            self.restarts,
            self.max_rounds,
            self.random_state,
        )

    def _train(
        self,
        X: Float[np.ndarray, "N D"],
        targets: Shaped[Tensor, "N *out"],
        num_outputs: int,
        likelihood: Likelihood,
        settings: Settings,
        log_unit: float = 0.0,
    ) -> None:
        """Fit a network of each width, keep the one of the largest evidence, and convert it.

        `log_unit`, N Σ_k log s_k for targets divided by s, is what the evidence in the units of the data is smaller by.
        """
        settings.check_size(X.shape[1], num_outputs)
        self.input_scaler_ = standardiser(X, "X")
        inputs = self._inputs(X)
        fits: dict[int, Fitted] = {}
        for width in settings.widths:
            fits[width] = fit_restarts(
                lambda width=width: mlp(
                    X.shape[1], num_outputs, width=width, depth=settings.depth, activation=settings.activation
                ).double(),
                inputs,
                targets,
                likelihood,
                prior_precision=settings.prior_precision,
                restarts=settings.restarts,
                seed=settings.seed,
                max_rounds=settings.max_rounds,
            )
        result = TuningResult.of("restarts", [_trial(width, fit, log_unit) for width, fit in fits.items()])
        self.width_ = next(width for width in fits if width == result.best["width"])
        best = fits[self.width_]
        self.tuning_ = replace(result, converged=best.settled, notes=_notes(best))
        self.network_, self.prior_precision_ = best.network, best.prior_precision
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotAMinimumWarning)  # said below, in the words of an estimator
            self.gp_ = convert(best.network, (inputs, targets), best.likelihood, best.prior_precision)
        self.log_evidence_ = self.gp_.evidence().value - log_unit
        _warn_unless_minimum(type(self).__name__, self.gp_, best.relative_gradient)
        if best.at_edge:
            warn_user(f"{type(self).__name__}: {self.tuning_.notes[-1]}", EvidenceWarning)

    def _predictive(self, X: Any) -> Predictive:
        """The GP at these inputs, for standardised targets."""
        inputs = self._checked(X)
        return self.gp_.predict(inputs)

    def _checked(self, X: Any) -> Float[Tensor, "N D"]:
        """Inputs to predict at, standardised as those of the training were."""
        check_is_fitted(self)
        return self._inputs(cast(np.ndarray, validate_data(self, X, reset=False, dtype=np.float64)))

    def _inputs(self, X: Float[np.ndarray, "N D"]) -> Float[Tensor, "N D"]:
        return standardised(X, self.input_scaler_)

    def __getstate__(self) -> dict[str, Any]:
        """The GP as the bytes of its file: it knows its weights by their place in memory, and that is not pickled."""
        state = dict(super().__getstate__())
        if _GP in state:
            with TemporaryDirectory() as folder:
                path = Path(folder) / _FILE
                save(state[_GP], path)
                state[_GP] = path.read_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The inverse of `__getstate__`; nothing is factorised again."""
        super().__setstate__(dict(state))
        if _GP in state:
            with TemporaryDirectory() as folder:
                path = Path(folder) / _FILE
                path.write_bytes(state[_GP])
                self.gp_ = load(path, self.network_)


def standardiser(values: Float[np.ndarray, "N D"], name: str) -> StandardScaler:
    """(v − mean) / s for each column, s its standard deviation, and s = 1 where it is constant."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaler = StandardScaler().fit(values)
    usable = np.isfinite(np.asarray(scaler.mean_)) & np.isfinite(np.asarray(scaler.scale_))
    if not usable.all():
        column = int(np.flatnonzero(~usable)[0])
        raise InputError(
            f"{name}: the mean and variance of column {column} overflow; its values go up to "
            f"{np.abs(values[:, column]).max():.2g}. Give it in a larger unit."
        )
    return scaler


def standardised(values: Float[np.ndarray, "N D"], scaler: StandardScaler) -> Float[Tensor, "N D"]:
    """The values as the network sees them (a scaler's own output may be a frame, if scikit-learn is set so)."""
    return torch.tensor(np.asarray(scaler.transform(values)))


def _trial(width: int, fit: Fitted, log_unit: float) -> Trial:
    values = {
        EVIDENCE: fit.evidence - log_unit,
        "prior_precision": fit.prior_precision,
        "relative_gradient": fit.relative_gradient,
    }
    if isinstance(fit.likelihood, GaussianLikelihood) and fit.likelihood.sigma.ndim == 0:
        values["standardised_sigma"] = fit.likelihood.sigma.item()
    return Trial({"width": width}, values)


def _notes(fit: Fitted) -> tuple[str, ...]:
    found = []
    if not fit.settled:
        found.append(f"The prior and the noise were still moving after {fit.rounds} rounds: give a larger max_rounds.")
    if fit.at_edge:
        found.append(
            "The evidence has no maximum within the range of δ and σ: X says nothing about y, or explains it without "
            "any noise. Look at the columns and the number of rows, or give prior_precision or sigma."
        )
    return tuple(found)


def _warn_unless_minimum(name: str, gp: GaussianProcess, relative_gradient: float) -> None:
    """Warn where the gradient is that of no minimum, and the step it asks for could move an output noticeably."""
    bound = gp.inference.step_bound()
    if not at_minimum(relative_gradient, bound):
        warn_user(
            f"{name}: the training did not come to a minimum of the loss; the gradient is {relative_gradient:.0%} of "
            "its parts (data and prior). The GP is exact, but its mean is a Gauss-Newton step away from the network, "
            f"which may move an output by up to {bound:.2g} posterior standard deviations. Take more restarts, a "
            "smooth activation such as tanh, a smaller width, or a larger prior_precision; for targets without noise "
            "give a sigma.",
            ConvergenceWarning,
        )
