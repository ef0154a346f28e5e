"""dnn2gp: neural networks as Gaussian processes.

gp = convert(network, data, likelihood)  # δ by the evidence; or prior_precision=1.0
prediction = gp.predict(inputs)          # .mean, .aleatoric, .epistemic
"""

from importlib.metadata import version

from dnn2gp import tune
from dnn2gp.averaged_predictive import AveragedPredictive
from dnn2gp.checkpoints import load_checkpoint, save_checkpoint
from dnn2gp.convert import convert, convert_step
from dnn2gp.curvature import EmpiricalFisher, ExactHessian, GaussNewton
from dnn2gp.diagnose import Diagnosis, diagnose
from dnn2gp.evidence import Evidence
from dnn2gp.expansion import Expansion
from dnn2gp.features import JacobianFeatures, LayerwiseFeatures
from dnn2gp.gaussian import Gaussian
from dnn2gp.gaussian_process import GaussianProcess
from dnn2gp.inference import FunctionSpace, WeightSpace
from dnn2gp.kernels import Kernel
from dnn2gp.laplace import laplace
from dnn2gp.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    CustomLikelihood,
    GaussianLikelihood,
    PoissonLikelihood,
)
from dnn2gp.linear_model import LinearModel
from dnn2gp.monte_carlo import sample_network
from dnn2gp.online_newton import OnlineNewton
from dnn2gp.optimizers import OGGN, OGN, ON, VOGGN, VOGN, VON
from dnn2gp.predictive import Predictive
from dnn2gp.priors import precision_from_weight_decay
from dnn2gp.recording import Recorder
from dnn2gp.storage import load, save
from dnn2gp.structures import BlockDiagonal, Dense, Diagonal, Kronecker
from dnn2gp.tuning_result import TuningResult
from dnn2gp.variational_evidence import VariationalEvidence

__version__ = version("dnn2gp")

__all__ = [  # noqa: RUF022 (grouped as the paper is: model and data, A, B, C, results)
    "convert",
    "BernoulliLikelihood",
    "CategoricalLikelihood",
    "CustomLikelihood",
    "GaussianLikelihood",
    "PoissonLikelihood",
    "precision_from_weight_decay",
    "LayerwiseFeatures",
    "JacobianFeatures",
    "Expansion",
    "Gaussian",
    "Dense",
    "BlockDiagonal",
    "Kronecker",
    "Diagonal",
    "laplace",
    "OnlineNewton",
    "GaussNewton",
    "EmpiricalFisher",
    "ExactHessian",
    "VOGN",
    "OGN",
    "VOGGN",
    "OGGN",
    "VON",
    "ON",
    "LinearModel",
    "Kernel",
    "WeightSpace",
    "FunctionSpace",
    "GaussianProcess",
    "convert_step",
    "Recorder",
    "AveragedPredictive",
    "Predictive",
    "Evidence",
    "VariationalEvidence",
    "tune",
    "TuningResult",
    "sample_network",
    "Diagnosis",
    "diagnose",
    "save",
    "load",
    "save_checkpoint",
    "load_checkpoint",
]
