"""What the evidence needs from inference in order to be a function of the prior precision δ and the noise σ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dnn2gp.network.layout import Layout
from dnn2gp.support.errors import IllConditionedError, NotPositiveDefiniteError
from dnn2gp.support.memory import require
from dnn2gp.weights.expansion import Expansion

_LOST = 1e-3
KNOB = "Raise the prior precision δ or the noise σ, or use float64."


class Scalable(ABC):
    """What an inference knows about ΦᵀΦ, and about any multiple of it."""

    @abstractmethod
    def scaled(self, factor: float) -> Scalable:
        """The same for `factor` ΦᵀΦ."""


@final
@dataclass(frozen=True, eq=False)
class Decomposition:
    """ΦΦᵀ = SᵀKS by its n largest eigenvalues, and the transformed outputs ỹ by their parts along its eigenvectors zᵢ.

    The M − n other eigenvalues are zero. ỹ is in units of the noise: Sᵀỹ.
    """

    eigenvalues: Float[Tensor, " n"]
    """λᵢ, in float64."""
    squares: Float[Tensor, " n"] | None = None
    """(zᵢᵀỹ)² for a Gaussian likelihood; None for any other, and where the posterior mean stays at the anchor."""
    beside: float = 0.0
    """‖ỹ‖² − Σᵢ (zᵢᵀỹ)²: what no weight can explain. Zero if n = M."""
    weights: Float[Tensor, " n"] | None = None
    """How often each λᵢ counts, if they are the nodes of a quadrature; once, if they are eigenvalues."""
    basis: Scalable | None = None
    """What `Inference.infer_after` can use again."""

    def scaled(self, factor: float) -> Decomposition:
        """That of `factor` ΦΦᵀ, without ỹ: for another prior precision or noise."""
        basis = None if self.basis is None else self.basis.scaled(factor)
        return Decomposition(factor * self.eigenvalues, weights=self.weights, basis=basis)


@final
@dataclass(frozen=True, eq=False)
class Groups:
    """Which weights share a prior precision: one group per layer, or all weights in one group."""

    layout: Layout
    members: tuple[tuple[int, ...], ...]
    """The positions in `layout.names` that belong to each group."""

    @staticmethod
    def of(layout: Layout, per_layer: bool) -> Groups:
        """One group per layer, or a single one."""
        groups = layout.layers.values() if per_layer else [range(len(layout.names))]
        return Groups(layout, tuple(tuple(members) for members in groups))

    def __len__(self) -> int:
        return len(self.members)

    def names(self, group: int) -> list[str]:
        """The names of the weights of a group."""
        return [self.layout.names[position] for position in self.members[group]]

    def of_weights(self, device: torch.device) -> Int[Tensor, " P"]:
        """The group of each weight."""
        of_tensor = torch.empty(len(self.layout.names), dtype=torch.long)
        for number, members in enumerate(self.members):
            of_tensor[list(members)] = number
        return of_tensor.repeat_interleave(torch.tensor(self.layout.sizes)).to(device)


class GroupedTerms(ABC):
    """The terms of the evidence for multiples c of δ, one per group of weights, and s of σ, one or one per output."""

    @abstractmethod
    def terms(
        self, c: Float[Tensor, " L"], s: Float[Tensor, " K"], misfits: Float[Tensor, " K"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """½ log |I + SᵀKS|, and for a Gaussian likelihood ỹᵀ(s²I + ΦΦᵀ/c)⁻¹ỹ; both can be differentiated.

        `misfits` is ‖S⁻¹r‖² of each output (or of all) at the anchor.
        """


def require_digits(norm: float, what: str) -> None:
    """Raise if a matrix whose smallest eigenvalue is 1, in units of noise or prior, has lost that to rounding."""
    lost = torch.finfo(torch.float64).eps / 2 * norm
    if lost > _LOST:
        raise IllConditionedError(
            f"{what}, in units of the noise, has a norm of {norm:.2g}, and a rounding error of {lost:.1g}: too large "
            "for an evidence with one δ per layer or one σ per output. Tune one δ and one σ, or raise them."
        )


def require_matrices(numbers: int, expansion: Expansion) -> None:
    """Raise unless the matrices of all groups or outputs, with this many numbers in total, fit into the budget."""
    require(
        8 * numbers,
        expansion.features.budget(),
        "Storing one matrix per layer or output, for an evidence with one δ per layer,",
        "Tune one δ for all layers, use fewer examples, or select fewer layers (subset=).",
    )


def require_decomposition(size: int, expansion: Expansion) -> None:
    """Raise unless a matrix, its eigenvectors and the work space of LAPACK fit into the memory budget."""
    require(
        4 * 8 * size**2,
        expansion.features.budget(),
        f"Choosing δ by the evidence takes the eigendecomposition of a {size} × {size} matrix, which",
        "Use fewer examples, or an approximation: structure=Kronecker(), or fewer layers, e.g. subset='last layer'.",
    )


def decomposed(matrix: Float[Tensor, "n n"], what: str) -> tuple[Float[Tensor, " n"], Float[Tensor, "n n"]]:
    """Eigenvalues and eigenvectors of a sum of squares; eigenvalues that rounding made negative count as zero."""
    _require_finite(matrix, what)
    values, vectors = torch.linalg.eigh(matrix)
    return values.clamp(min=0), vectors


def eigenvalues_of(matrix: Float[Tensor, "n n"], what: str) -> Float[Tensor, " n"]:
    """Only the eigenvalues, in a third of the time."""
    _require_finite(matrix, what)
    return torch.linalg.eigvalsh(matrix).clamp(min=0)


def _require_finite(matrix: Float[Tensor, "n n"], what: str) -> None:
    if not matrix.isfinite().all():
        raise NotPositiveDefiniteError(
            f"{what} contains NaN or infinity: the network's Jacobian overflows. Check its weights and inputs."
        )
