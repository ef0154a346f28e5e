"""Tune a network on its training data alone: δ, σ, width and anything else by the evidence, three ways, one result.

    tune.grid(fit, {"prior_precision": [0.1, 1.0, 10.0]}, repeats=5)     every setting, every repeat
    tune.gradient(network, data, likelihood)                             δ and σ by gradient, and retraining, in turns
    tune.study(objective, num_trials=50)                                 anything that an Optuna trial can suggest

`tune.WhileTraining` does it in a training loop of your own, every few epochs.
"""

from dnn2gp.evidence.tuning_result import Curve, Trial, TuningResult
from dnn2gp.tune.gradient import gradient
from dnn2gp.tune.grid import grid
from dnn2gp.tune.study import study
from dnn2gp.tune.while_training import WhileTraining

__all__ = ["Curve", "Trial", "TuningResult", "WhileTraining", "gradient", "grid", "study"]
