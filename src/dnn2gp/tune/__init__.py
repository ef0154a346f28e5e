"""Tuning δ, σ, the width or anything else by the evidence, on the training data alone: three ways, one result.

    tune.grid(fit, {"prior_precision": [0.1, 1.0, 10.0]}, repeats=5)     every setting, several times
    tune.gradient(network, data, likelihood)                             alternate between retraining and tuning δ, σ
    tune.study(objective, num_trials=50)                                 anything that an Optuna trial can suggest

`tune.WhileTraining` tunes δ and σ every few epochs of your own training loop. May import `gp` and the rooms below it.
Start with `grid.py`; `ensemble.py` holds the batches of small networks that estimators and figures train.
"""

from dnn2gp.evidence.tuning_result import Curve, Trial, TuningResult
from dnn2gp.tune.gradient import gradient
from dnn2gp.tune.grid import grid
from dnn2gp.tune.ranking import ByCautiousEvidence, ByLeaveOneOut
from dnn2gp.tune.study import study
from dnn2gp.tune.while_training import WhileTraining

__all__ = [
    "ByCautiousEvidence",
    "ByLeaveOneOut",
    "Curve",
    "Trial",
    "TuningResult",
    "WhileTraining",
    "gradient",
    "grid",
    "study",
]
