"""Classification: probabilities that know what the network does not."""

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
from dnn2gp.estimators.settings import EVIDENCE
from dnn2gp.likelihoods import CategoricalLikelihood
from dnn2gp.support.errors import InputError


@final
class GPNetClassifier(ClassifierMixin, GPNetEstimator):
    """A small network with a softmax that is a Gaussian process: trained, tuned and converted by `fit`.

    X is standardised inside; the labels may be of any kind. δ and the width are those of the largest (Laplace) evidence
    of the training data; of several first weights (`restarts`) the best is kept.

    width            hidden units of a layer; of a sequence of widths the one of the largest evidence is taken
    depth            hidden layers; 0 gives a linear model
    activation       "tanh", "sigmoid", "relu", "gelu" or "silu"
    prior_precision  δ of the prior N(0, 1/δ) of each weight of the network on standardised inputs; "evidence": tuned
    restarts         networks that are trained, from other first weights and other first δ
    max_rounds       turns of training and tuning
    random_state     seed of the first weights: int, RandomState or None

    After `fit`:

    gp_               the GaussianProcess, from standardised inputs to a logit for each class
    network_          the module that it was converted from
    input_scaler_     the StandardScaler of X
    classes_          the labels, sorted
    prior_precision_  δ
    log_evidence_     log p(labels), in nats
    width_, tuning_   the width, and the TuningResult with the evidence of each
    n_features_in_, feature_names_in_
    """

    classes_: Shaped[np.ndarray, " K"]

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
                f"y: expected labels of 2 classes at least; got 1 class, {only!r}. Add examples of another."
            )
        self._train(inputs, torch.from_numpy(labels), len(self.classes_), CategoricalLikelihood(), settings)
        return self

    def predict(self, X: Any) -> Shaped[np.ndarray, " N"]:
        """The label of the largest probability."""
        most = self._probabilities(X).argmax(1).numpy()
        return self.classes_[most]

    def predict_proba(self, X: Any) -> Float[np.ndarray, "N K"]:
        """E[softmax(f)] over the GP, in the order of `classes_`, by MacKay's probit approximation of pairs of classes.

        p_k ∝ 1 / Σ_j exp(−(m_k − m_j) / √(1 + π v_kj / 8)) with m = E f and v_kj = Var(f_k − f_j): far from the data,
        where v is large, the probabilities come near to each other. See `Predictive.probit`.
        """
        return self._probabilities(X).numpy()

    def predict_log_proba(self, X: Any) -> Float[np.ndarray, "N K"]:
        """The logarithm of `predict_proba`."""
        return self._probabilities(X).log().numpy()

    def _probabilities(self, X: Any) -> Float[Tensor, "N K"]:
        return self._predictive(X).probit()
