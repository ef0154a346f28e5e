"""Structures of a precision over the weights."""

from dnn2gp.structures.base import Structure
from dnn2gp.structures.cholesky import cholesky
from dnn2gp.structures.dense import Dense
from dnn2gp.structures.diagonal import Diagonal

__all__ = ["Dense", "Diagonal", "Structure", "cholesky"]
