"""The networks of the paper."""

from dnn2gp.nets.lenet import lenet5
from dnn2gp.nets.mlp import ACTIVATIONS, mlp

__all__ = ["ACTIVATIONS", "lenet5", "mlp"]
