"""The networks of the paper: LeNet-5, and the erf network whose infinite limit is known."""

from dnn2gp.paper.networks.lenet import lenet5

__all__ = ["lenet5"]
