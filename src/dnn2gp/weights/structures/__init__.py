"""Structures of a posterior precision (choices such as `Kronecker()`) and the precisions that have them (matrices)."""

from dnn2gp.weights.structures.base import Precision, Structure
from dnn2gp.weights.structures.block_diagonal import BlockDiagonal, BlockDiagonalPrecision
from dnn2gp.weights.structures.dense import Dense, DensePrecision
from dnn2gp.weights.structures.diagonal import Diagonal, DiagonalPrecision
from dnn2gp.weights.structures.kronecker import Kronecker, KroneckerPrecision

__all__ = [
    "BlockDiagonal",
    "BlockDiagonalPrecision",
    "Dense",
    "DensePrecision",
    "Diagonal",
    "DiagonalPrecision",
    "Kronecker",
    "KroneckerPrecision",
    "Precision",
    "Structure",
]
