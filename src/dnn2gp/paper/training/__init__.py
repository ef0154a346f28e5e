"""`dnn2gp train`: train LeNet-5 on the paper's images by VOGN, OGN or Adam with one command."""

from dnn2gp.paper.training.config import TrainConfig
from dnn2gp.paper.training.job import TrainResult, run

__all__ = ["TrainConfig", "TrainResult", "run"]
