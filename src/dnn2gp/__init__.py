"""dnn2gp: neural networks as Gaussian processes.

gp = convert(network, data, likelihood)  # δ by the evidence; or prior_precision=1.0
prediction = gp.predict(inputs)          # .mean, .aleatoric, .epistemic
"""

from importlib.metadata import version

from dnn2gp import tune
from dnn2gp.evidence import Evidence
from dnn2gp.gp import GaussianProcess, convert, diagnose, load, save
from dnn2gp.inference import FunctionSpace, Kernel, Predictive, WeightSpace
from dnn2gp.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    CustomLikelihood,
    GaussianLikelihood,
    PoissonLikelihood,
)
from dnn2gp.optim import OGGN, OGN, ON, VOGGN, VOGN, VON
from dnn2gp.weights import BlockDiagonal, Dense, Diagonal, Kronecker, precision_from_weight_decay

__version__ = version("dnn2gp")

__all__ = [  # noqa: RUF022 (grouped as the paper is: model and data, A, B, C, results)
    "convert",
    "BernoulliLikelihood",
    "CategoricalLikelihood",
    "CustomLikelihood",
    "GaussianLikelihood",
    "PoissonLikelihood",
    "precision_from_weight_decay",
    "Dense",
    "BlockDiagonal",
    "Kronecker",
    "Diagonal",
    "VOGN",
    "OGN",
    "VOGGN",
    "OGGN",
    "VON",
    "ON",
    "WeightSpace",
    "FunctionSpace",
    "GaussianProcess",
    "Kernel",
    "Predictive",
    "Evidence",
    "diagnose",
    "tune",
    "save",
    "load",
]
