"""What an iterative inference did, what it cost, and how accurate it is."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import final

import torch
from torch import Tensor

from dnn2gp.support.memory import readable


@final
@dataclass(frozen=True)
class Report:
    """`gp.inference.report()`."""

    rank: int
    """The columns of the basis."""
    samples: int
    """Pairs of coupled samples."""
    iterations: int
    """The most iterations of conjugate gradients for a sample."""
    residual: float
    """The largest relative residual that they left."""
    effective_dimension: float
    """d_eff = tr G (I + G)⁻¹, the number of weights that the data determine."""
    effective_dimension_error: float
    """Its error, the bias by the residual included."""
    log_det: float
    """log |I + G|."""
    log_det_error: float
    """Its error, the bias by the residual included."""
    covariance_error: float
    """The median relative standard deviation of the predictive variances of some training inputs."""
    tolerance: float
    """The requested standard deviation."""
    passes: int
    """Passes over the training data, those before an interruption included."""
    columns: int
    """Vectors that were multiplied with ΦᵀΦ in these passes, in total."""
    seconds: float
    """The time that inferring the posterior took, without what an interrupted call had done before."""
    bytes: int
    """The memory of the basis and the samples."""

    @property
    def reached(self) -> bool:
        """Whether the covariances are as accurate as requested."""
        return self.covariance_error <= self.tolerance

    def __str__(self) -> str:
        """A few lines."""
        accuracy = "within" if self.reached else "above"
        effective = f"{self.effective_dimension:.0f} ± {self.effective_dimension_error:.2g}"
        return (
            f"rank {self.rank}, {self.samples} samples by {self.iterations} iterations (relative residual "
            f"{self.residual:.2g}), effective dimension {effective}\n"
            f"predictive variances ± {self.covariance_error:.1%} (relative standard deviation, {accuracy} the "
            f"tolerance of {self.tolerance:.1%}); log-determinant {self.log_det:.1f} ± {self.log_det_error:.2g}\n"
            f"{self.passes} passes over the data with {self.columns} columns in all, {self.seconds:.1f} s, "
            f"{readable(self.bytes)}"
        )

    def state(self) -> Tensor:
        """As numbers, for a file."""
        return torch.tensor([float(value) for value in astuple(self)], dtype=torch.float64)

    @staticmethod
    def restored(state: Tensor) -> Report:
        """The inverse of `state`."""
        kinds = {"int": int, "float": float}
        values = zip(fields(Report), state.tolist(), strict=True)
        return Report(**{field.name: kinds[str(field.type)](value) for field, value in values})


NUM_FACTS = len(fields(Report))
"""The numbers of `Report.state`."""
