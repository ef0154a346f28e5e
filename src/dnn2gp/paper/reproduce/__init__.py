"""`dnn2gp reproduce`: every figure of the paper by one command, beside what the paper says."""

from dnn2gp.paper.reproduce.figures import FIGURES
from dnn2gp.paper.reproduce.job import Outcome, ReproduceConfig, run

__all__ = ["FIGURES", "Outcome", "ReproduceConfig", "run"]
