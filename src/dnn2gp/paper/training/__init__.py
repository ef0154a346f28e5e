"""`dnn2gp train`: a network of the paper on its data, by an online-Newton method or by Adam, in one command."""

from dnn2gp.paper.training.config import TrainConfig
from dnn2gp.paper.training.job import TrainResult, run

__all__ = ["TrainConfig", "TrainResult", "run"]
