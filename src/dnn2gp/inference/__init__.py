"""Steps (B) and (C): the linear model on transformed data, and its posterior in weight space or function space.

May import `weights` and the rooms below it. Start with `linear_model.py` (Theorems 1 and 2) and `base.py` (what every
inference must provide), then `weight_space.py`, `function_space.py`, `choice.py` and `predictive.py`.
"""

from dnn2gp.inference.averaged_predictive import AveragedPredictive
from dnn2gp.inference.base import Cost, Inference, Posterior
from dnn2gp.inference.calibration import Calibration
from dnn2gp.inference.choice import choose
from dnn2gp.inference.costs import costs
from dnn2gp.inference.evidence_parts import Decomposition, GroupedTerms, Groups
from dnn2gp.inference.function_space import FunctionSpace
from dnn2gp.inference.iterative import Iterative
from dnn2gp.inference.kernel import Kernel
from dnn2gp.inference.leave_one_out import LeftOut, left_out
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.inference.linearised_mode import linearised_mode
from dnn2gp.inference.mean import GaussNewtonStep, LinearisedMode, Mean, NetworkOutput
from dnn2gp.inference.predictive import Latent, Predictive
from dnn2gp.inference.top_classes import TopClasses, new_latent, training_latent
from dnn2gp.inference.top_predictive import TopPredictive
from dnn2gp.inference.weight_space import WeightSpace

__all__ = [
    "AveragedPredictive",
    "Calibration",
    "Cost",
    "Decomposition",
    "FunctionSpace",
    "GaussNewtonStep",
    "GroupedTerms",
    "Groups",
    "Inference",
    "Iterative",
    "Kernel",
    "Latent",
    "LeftOut",
    "LinearModel",
    "LinearisedMode",
    "Mean",
    "NetworkOutput",
    "Posterior",
    "Predictive",
    "TopClasses",
    "TopPredictive",
    "WeightSpace",
    "choose",
    "costs",
    "left_out",
    "linearised_mode",
    "new_latent",
    "training_latent",
]
