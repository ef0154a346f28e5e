"""Structures of a precision over the weights."""

from dnn2gp.weights.structures.base import Structure
from dnn2gp.weights.structures.block_diagonal import BlockDiagonal
from dnn2gp.weights.structures.dense import Dense
from dnn2gp.weights.structures.diagonal import Diagonal
from dnn2gp.weights.structures.kronecker import Kronecker

__all__ = ["BlockDiagonal", "Dense", "Diagonal", "Kronecker", "Structure"]
