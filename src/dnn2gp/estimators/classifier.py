"""Classification with class probabilities that account for the uncertainty of the weights."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Shaped
from sklearn.base import ClassifierMixin
from sklearn.preprocessing import LabelEncoder
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from dnn2gp.estimators.base import GPNetEstimator
from dnn2gp.likelihoods import CategoricalLikelihood
from dnn2gp.support.errors import InputError


@final
class GPNetClassifier(ClassifierMixin, GPNetEstimator):
    """A classifier that trains a small softmax network, tunes it, and converts it to a Gaussian process.

    X is standardised internally, and labels may be of any kind. δ and the width maximise the (Laplace) evidence of the
    training data.

    Args:
        width: Hidden units per layer. Of several widths, the one with the largest evidence is chosen.
        depth: Hidden layers; 0 gives a linear model.
        activation: "tanh", "sigmoid", "relu", "gelu" or "silu".
        prior_precision: δ of the prior N(0, 1/δ) of each weight, for standardised inputs; "evidence" tunes it.
        restarts: Networks to train from different initial weights and δ; the best is kept.
        max_rounds: Largest number of rounds, each of which trains the weights and then tunes δ.
        random_state: Seed of the initial weights: int, RandomState or None.

    Attributes:
        gp_: The GaussianProcess, from standardised inputs to one logit per class.
        network_: The module that it was converted from.
        input_scaler_: The StandardScaler of X.
        classes_: The sorted labels.
        prior_precision_: δ.
        log_evidence_: log p(labels), in nats.
        width_: The chosen width.
        tuning_: The TuningResult with the evidence of each width.
        n_features_in_, feature_names_in_: As in every estimator.
    """

    classes_: Shaped[np.ndarray, " K"]

    def fit(self, X: Any, y: Any) -> GPNetClassifier:
        """Train and tune on N × D inputs and N labels."""
        settings = self._settings()
        inputs, given = self._validated(X, y)
        check_classification_targets(given)
        encoder = LabelEncoder()
        labels = np.asarray(encoder.fit_transform(given), dtype=np.int64)
        self.classes_ = np.asarray(encoder.classes_)
        if len(self.classes_) < 2:
            (only,) = self.classes_.tolist()
            raise InputError(
                f"y: expected labels of at least 2 classes; got 1 class, {only!r}. Add examples of another class."
            )
        self._train(inputs, torch.from_numpy(labels), len(self.classes_), CategoricalLikelihood(), settings)
        return self

    def predict(self, X: Any) -> Shaped[np.ndarray, " N"]:
        """The most probable label of each row."""
        most = self._probabilities(X).argmax(1).numpy()
        return self.classes_[most]

    def predict_proba(self, X: Any) -> Float[np.ndarray, "N K"]:
        """The probabilities E[softmax(f)] under the GP, in the order of `classes_`; see `Predictive.probabilities`.

        Far from the data, where the variance of f is large, the probabilities approach one another.
        """
        return self._probabilities(X).numpy()

    def predict_log_proba(self, X: Any) -> Float[np.ndarray, "N K"]:
        """The logarithm of `predict_proba`."""
        return self._probabilities(X).log().numpy()

    def _probabilities(self, X: Any) -> Float[Tensor, "N K"]:
        return self._predictive(X).probabilities
