"""`dnn2gp reproduce`: every figure of the paper with one command, compared with what the paper says."""

from dnn2gp.paper.reproduce.runner import Outcome, ReproduceConfig, run

__all__ = ["Outcome", "ReproduceConfig", "run"]
