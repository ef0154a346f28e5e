"""Inference in the linear model: weight space, function space, and the choice of the smaller."""

from dnn2gp.inference.base import Cost, Inference
from dnn2gp.inference.choice import choose_space, costs
from dnn2gp.inference.function_space import FunctionSpace
from dnn2gp.inference.weight_space import WeightSpace

__all__ = ["Cost", "FunctionSpace", "Inference", "WeightSpace", "choose_space", "costs"]
