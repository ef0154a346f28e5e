"""What both estimators share: parameters, training and tuning by the evidence, and conversion to a GP."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral
from typing import Any, TypeGuard, cast

import numpy as np
import torch
from jaxtyping import Float, Shaped
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from dnn2gp.evidence.tuning_result import EVIDENCE, Trial, TuningResult
from dnn2gp.gp.convert import convert
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.minimum import at_minimum
from dnn2gp.inference.predictive import Predictive
from dnn2gp.likelihoods import GaussianLikelihood, Likelihood
from dnn2gp.network.mlp import ACTIVATIONS, mlp
from dnn2gp.support.errors import EvidenceWarning, InputError, NotAMinimumWarning, warn_user
from dnn2gp.support.numbers import positive_number, seed_number
from dnn2gp.tune.large_network import EXACT_SIZE
from dnn2gp.tune.restarts import Fitted, fit_restarts

MAX_WEIGHTS = 20_000
"""Small networks are trained with Gauss-Newton steps, larger ones with L-BFGS; see `dnn2gp.tune.restarts`."""


@dataclass(frozen=True)
class Settings:
    """How networks are built, trained and tuned."""

    widths: tuple[int, ...]
    depth: int
    activation: str
    prior_precision: float | None
    """δ; None: tuned by the evidence."""
    restarts: int
    max_rounds: int
    seed: int

    @staticmethod
    def checked(
        *,
        width: object,
        depth: object,
        activation: object,
        prior_precision: object,
        restarts: object,
        max_rounds: object,
        random_state: object,
    ) -> Settings:
        """Settings from the parameters of an estimator; an `InputError` names the first that is invalid."""
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            raise InputError(f"activation: expected one of {', '.join(ACTIVATIONS)}; got {activation!r}.")
        return Settings(
            widths=_widths(width),
            depth=_count("depth", depth, 0),
            activation=activation,
            prior_precision=None if is_evidence(prior_precision) else number("prior_precision", prior_precision),
            restarts=_count("restarts", restarts, 1),
            max_rounds=_count("max_rounds", max_rounds, 1),
            seed=seed_of(random_state),
        )

    def check_size(self, num_inputs: int, num_outputs: int) -> None:
        """Raise an `InputError` if a network has more weights than can be tuned."""
        for width in self.widths:
            sizes = [num_inputs, *[width] * self.depth, num_outputs]
            count = sum((before + 1) * after for before, after in pairwise(sizes))
            if count > MAX_WEIGHTS:
                raise InputError(
                    f"width: expected a network with at most {MAX_WEIGHTS} weights, because tuning trains it many "
                    f"times; got {count}, from {num_inputs} columns, width {width}, depth {self.depth} "
                    f"and {num_outputs} outputs. Use a smaller width, or reduce the columns first, for example with "
                    "PCA in a Pipeline."
                )


def is_evidence(value: object) -> bool:
    """Whether a parameter is to be tuned by the evidence."""
    return isinstance(value, str) and value == EVIDENCE


def number(name: str, value: object) -> float:
    """The value as a float, if it is a finite number > 0."""
    try:
        return positive_number(name, value)
    except InputError as error:
        raise InputError(str(error).replace("expected a", f'expected "{EVIDENCE}" or a', 1)) from None


def seed_of(random_state: object) -> int:
    """A seed for torch from an int, a RandomState or None; None gives a different one each time."""
    if isinstance(random_state, Integral):
        random_state = seed_number("random_state", random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def is_several(value: object) -> TypeGuard[Sequence[object]]:
    """Whether the value is a sequence other than a string."""
    if isinstance(value, np.ndarray):
        return value.ndim == 1
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _widths(width: object) -> tuple[int, ...]:
    widths = [_count("width", each, 1) for each in (width if is_several(width) else [width])]
    if not widths:
        raise InputError("width: expected an int ≥ 1 or a sequence of them; got an empty one.")
    return tuple(dict.fromkeys(widths))


def _count(name: str, value: object, least: int) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        sequence = " or a sequence of them" if name == "width" else ""
        raise InputError(f"{name}: expected an int ≥ {least}{sequence}; got {value!r}.")
    return int(value)


class GPNetEstimator(BaseEstimator, ABC):
    """A multi-layer perceptron in float64 on standardised data, tuned by the evidence, which predicts as a GP."""

    gp_: GaussianProcess
    network_: nn.Module
    prior_precision_: float
    log_evidence_: float
    width_: int
    tuning_: TuningResult
    input_scaler_: StandardScaler
    n_features_in_: int

    def __init__(
        self,
        width: object = 20,
        depth: object = 1,
        activation: object = "tanh",
        prior_precision: object = EVIDENCE,
        restarts: object = 4,
        max_rounds: object = 20,
        random_state: object = 0,
    ) -> None:
        self.width = width
        self.depth = depth
        self.activation = activation
        self.prior_precision = prior_precision
        self.restarts = restarts
        self.max_rounds = max_rounds
        self.random_state = random_state

    @abstractmethod
    def fit(self, X: Any, y: Any) -> GPNetEstimator:
        """Train and tune on N × D inputs and their targets."""

    def _validated(self, X: Any, y: Any, *, multi_output: bool = False) -> tuple[Float[np.ndarray, "N D"], np.ndarray]:
        """X in float64 and y, checked by scikit-learn, which also records the number of features and their names."""
        found = validate_data(self, X, y, dtype=np.float64, multi_output=multi_output)
        return cast(tuple[np.ndarray, np.ndarray], found)

    def _settings(self) -> Settings:
        """The checked parameters that both estimators have."""
        names = ("width", "depth", "activation", "prior_precision", "restarts", "max_rounds", "random_state")
        return Settings.checked(**{name: getattr(self, name) for name in names})

    def _train(
        self,
        X: Float[np.ndarray, "N D"],
        targets: Shaped[Tensor, "N *out"],
        num_outputs: int,
        likelihood: Likelihood,
        settings: Settings,
        log_unit: float = 0.0,
    ) -> None:
        """Fit a network of each width, and convert the one with the largest evidence to a GP.

        `log_unit` is N Σ_k log s_k for targets that were divided by s. The log evidence in the units of the data is
        smaller by this amount.
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
            warnings.simplefilter("ignore", NotAMinimumWarning)  # the warning below is worded for an estimator
            self.gp_ = convert(
                best.network, (inputs, targets), best.likelihood, best.prior_precision, structure=best.structure
            )
        self.log_evidence_ = result.evidence
        _warn_unless_minimum(type(self).__name__, self.gp_, best.relative_gradient)
        for note in _warnings(best):
            warn_user(f"{type(self).__name__}: {note}", EvidenceWarning)

    def _predictive(self, X: Any) -> Predictive:
        """The prediction of the GP at these inputs, for standardised targets."""
        inputs = self._checked(X)
        return self.gp_.predict(inputs)

    def _checked(self, X: Any) -> Float[Tensor, "N D"]:
        """Inputs to predict at, standardised like the training inputs."""
        check_is_fitted(self)
        return self._inputs(cast(np.ndarray, validate_data(self, X, reset=False, dtype=np.float64)))

    def _inputs(self, X: Float[np.ndarray, "N D"]) -> Float[Tensor, "N D"]:
        return standardised(X, self.input_scaler_)


def standardiser(values: Float[np.ndarray, "N D"], name: str) -> StandardScaler:
    """The scaler (v − mean) / s of each column, where s is the standard deviation, or 1 for a constant column."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaler = StandardScaler().fit(values)
    usable = np.isfinite(np.asarray(scaler.mean_)) & np.isfinite(np.asarray(scaler.scale_))
    if not usable.all():
        column = int(np.flatnonzero(~usable)[0])
        raise InputError(
            f"{name}: the mean and variance of column {column} overflow; its values are as large as "
            f"{np.abs(values[:, column]).max():.2g}. Use a larger unit."
        )
    return scaler


def standardised(values: Float[np.ndarray, "N D"], scaler: StandardScaler) -> Float[Tensor, "N D"]:
    """The scaled values as a tensor, even if scikit-learn is configured to return data frames."""
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
    if fit.settled:
        return _warnings(fit)
    return (f"δ and σ had not converged after {fit.rounds} rounds. Use a larger max_rounds.", *_warnings(fit))


def _warnings(fit: Fitted) -> tuple[str, ...]:
    """The notes that are warnings, too."""
    found = []
    if fit.structure is not None:
        found.append(
            f"Neither the weights nor rows × outputs are at most {EXACT_SIZE:,}, so δ was tuned by the evidence of "
            f"{fit.structure!r}, and the GP has that structure: its variances are approximate. Use fewer rows or a "
            "smaller width for the exact GP."
        )
    if fit.at_edge:
        found.append(
            "The evidence has no maximum within the range of δ and σ: X says nothing about y, or predicts it "
            "without noise. Check the columns and the number of rows, or set prior_precision or sigma."
        )
    return tuple(found)


def _warn_unless_minimum(name: str, gp: GaussianProcess, relative_gradient: float) -> None:
    """Warn if the weights are not at a minimum, and the minimum of the linearised network is noticeably elsewhere."""
    bound = gp.inference.step_bound()
    if not at_minimum(relative_gradient, bound):
        warn_user(
            f"{name}: training did not reach a minimum of the loss; the gradient is {relative_gradient:.0%} of its "
            "parts (data and prior). The GP is that of the linearised network, whose minimum may differ from the "
            f"network by up to {bound:.2g} posterior standard deviations of an output, and the evidence that chose the "
            "hyperparameters is less reliable. Try more restarts, a smooth activation such as tanh, a smaller width, "
            "or a larger prior_precision; for targets without noise, set sigma.",
            ConvergenceWarning,
        )
