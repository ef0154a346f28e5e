"""Structures of a precision over the weights."""

from dnn2gp.structures.base import Structure
from dnn2gp.structures.block_diagonal import BlockDiagonal
from dnn2gp.structures.cholesky import cholesky
from dnn2gp.structures.dense import Dense
from dnn2gp.structures.diagonal import Diagonal
from dnn2gp.structures.kronecker import Kronecker

__all__ = ["BlockDiagonal", "Dense", "Diagonal", "Kronecker", "Structure", "cholesky"]
