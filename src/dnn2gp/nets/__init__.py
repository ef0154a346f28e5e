"""The networks of the paper."""

from dnn2gp.nets.lenet import lenet5

__all__ = ["lenet5"]
