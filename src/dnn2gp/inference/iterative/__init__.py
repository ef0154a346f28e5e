"""Inference by products with ΦᵀΦ alone: a low-rank basis, and coupled samples that correct it.

Start with `choice.py` (`Iterative`), then `basis.py` (block Lanczos and Nyström), `samples.py` and `coupled.py`
(covariances with an error), `solve.py` (conjugate gradients) and `posterior.py`.
"""

from dnn2gp.inference.iterative.choice import Iterative
from dnn2gp.inference.iterative.report import Report

__all__ = ["Iterative", "Report"]
