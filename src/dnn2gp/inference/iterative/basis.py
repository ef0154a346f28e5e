"""G = ΦᵀΦ on a Krylov space: block Lanczos, the Nyström approximation of G, and quadrature of its spectrum.

Starting from a random block, each round multiplies the last block of an orthonormal Q with G and makes the result
orthogonal to all earlier ones, so that after r columns

    G Q = Q⁺ C ,        Q⁺ = [Q, Q'] ∈ R^{P×n} ,        T = QᵀGQ = C[:r] .

The image of Q therefore costs no further pass over the data, and the Nyström approximation

    Ĝ = GQ (QᵀGQ)⁻¹ QᵀG = Q⁺ C T⁻¹ Cᵀ Q⁺ᵀ  ⪯  G

is better than Q T Qᵀ. A smaller subspace of Q gives a Nyström approximation too: directions in which T is lost to
rounding are left out, without a shift.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.inference.evidence_parts import Scalable
from dnn2gp.support.progress import bar
from dnn2gp.support.resumable import remembered

Product = Callable[[Float[Tensor, "P s"]], Float[Tensor, "P s"]]
Keep = Callable[[str, Callable[[], dict[str, Tensor]]], dict[str, Tensor]]
"""`remembered`, or a function like it."""
# Eigenvalues of T below this multiple of its rounding error are left out.
_ROUNDING = 32.0


@final
@dataclass(frozen=True, eq=False)
class Basis(Scalable):
    """Q⁺ and C of G = ΦᵀΦ, with the random block Ω = Q₁ R₁ that the space was started from."""

    vectors: Float[Tensor, "P n"]
    """Q⁺, orthonormal, in the dtype of the products."""
    image: Float[Tensor, "n r"]
    """C, in float64."""
    start: Float[Tensor, "b b"]
    """R₁, in float64."""
    num_probes: int
    """The last so many columns of Ω are ~ N(0, I)."""

    @staticmethod
    def of(product: Product, start: Float[Tensor, "P b"], rank: int, num_probes: int, keep: Keep = remembered) -> Basis:
        """From products with G, of `start.shape[1]` columns at a time; the last `num_probes` columns are ~ N(0, I).

        `keep` keeps what each round finds, in case that the work is interrupted.
        """
        size, width = start.shape
        rank = min(rank, size)
        vectors = start.new_empty(size, min(size, rank + width))
        image = torch.zeros(vectors.shape[1], rank, dtype=torch.float64, device=start.device)
        first, triangle = torch.linalg.qr(start)
        vectors[:, :width] = first
        known, done = width, 0
        rounds = -(-rank // width)
        with bar("basis of the curvature", rounds) as advance:
            for number in range(rounds):
                own = slice(done, min(known, rank))
                if own.start >= own.stop:
                    break
                largest, room = image.abs().max().item(), vectors.shape[1] - known
                found = keep("basis", partial(_round, product, vectors[:, :known], own, largest, room))
                added = found["added"]
                image[:known, own] = found["parts"].to(image)
                vectors[:, known : known + added.shape[1]] = added.to(vectors)
                image[known : known + added.shape[1], own] = found["sizes"].to(image)
                left = found["sizes"].abs().max().item() / image.abs().max().item() if added.numel() else 0.0
                done, known = own.stop, known + added.shape[1]
                advance(f"pass {number + 1}, {done} of {rank} columns, residual {left:.2g}")
        return Basis(vectors[:, :known], image[:known, :done], triangle.double(), num_probes)

    @property
    def rank(self) -> int:
        """r, the number of columns that were multiplied with G."""
        return self.image.shape[1]

    @property
    def largest(self) -> float:
        """The largest eigenvalue of T, and nearly that of G."""
        return max(0.0, self._ritz[0][-1].item())

    def scaled(self, factor: float) -> Basis:
        """The basis of `factor` G: the same vectors."""
        return replace(self, image=factor * self.image)

    @cached_property
    def _ritz(self) -> tuple[Float[Tensor, " r"], Float[Tensor, "r r"]]:
        """Eigenvalues and eigenvectors of T."""
        square = self.image[: self.rank]
        return torch.linalg.eigh((square + square.T) / 2)

    @cached_property
    def _kept(self) -> tuple[Float[Tensor, "r k"], Float[Tensor, " k"]]:
        """The eigenvectors and eigenvalues of T that are not rounding."""
        values, vectors = self._ritz
        least = _ROUNDING * torch.finfo(self.vectors.dtype).eps * max(values[-1].item(), 0.0)
        kept = values > max(least, torch.finfo(torch.float64).tiny)
        return vectors[:, kept], values[kept]

    @cached_property
    def nystrom(self) -> tuple[Float[Tensor, " k"], Float[Tensor, "n k"]]:
        """λ and U with Ĝ = Q⁺ U diag(λ) Uᵀ Q⁺ᵀ."""
        vectors, values = self._kept
        root = self.image @ (vectors / values.sqrt())
        left, lengths, _ = torch.linalg.svd(root, full_matrices=False)
        return lengths.square(), left

    def projected(self, pulled: Float[Tensor, "P s"]) -> Float[Tensor, "P s"]:
        """GQ (QᵀGQ)⁻¹ Qᵀ u: what Ĝ knows of u = Φᵀε. Its covariance is Ĝ, and that with u is Ĝ too."""
        vectors, values = self._kept
        own = self.vectors[:, : self.rank].T @ pulled
        small = self.image @ (vectors / values) @ (vectors.T @ own.double())
        return self.vectors @ small.to(self.vectors.dtype)

    def quadrature(self) -> tuple[Float[Tensor, " r"], Float[Tensor, " r"]]:
        """Nodes λₖ ≥ 0 and weights ωₖ with tr f(G) ≈ Σₖ ωₖ f(λₖ) for f(0) = 0: block Gauss quadrature over Ω."""
        values, vectors = self._ritz
        along = vectors[: len(self.start)].T @ self.start[:, -self.num_probes :]
        return values.clamp(min=0), along.square().mean(1)

    def along_first(self) -> Float[Tensor, " r"]:
        """The weights ωₖ with zᵀf(G)z ≈ Σₖ ωₖ f(λₖ) for the first column z of the start."""
        _, vectors = self._ritz
        return (vectors[: len(self.start)].T @ self.start[:, 0]).square()


def _round(product: Product, vectors: Float[Tensor, "P n"], own: slice, largest: float, room: int) -> dict[str, Tensor]:
    """The image of some columns of the basis: its parts along all columns, and the block that it adds to them."""
    images = product(vectors[:, own])
    parts = orthogonalise(images, vectors)
    norm = max(largest, parts.abs().max().item())
    added, sizes = next_block(images, vectors, norm, room)
    return {"parts": parts, "added": added, "sizes": sizes}


def orthogonalise(images: Float[Tensor, "P s"], vectors: Float[Tensor, "P n"]) -> Float[Tensor, "n s"]:
    """Remove from `images`, in place, their parts along orthonormal vectors, and return these; twice, for rounding."""
    total = torch.zeros(vectors.shape[1], images.shape[1], dtype=torch.float64, device=images.device)
    for _ in range(2):
        parts = vectors.T @ images
        images.addmm_(vectors, parts, alpha=-1)
        total += parts.double()
    return total


def next_block(
    images: Float[Tensor, "P s"], vectors: Float[Tensor, "P n"], norm: float, room: int
) -> tuple[Float[Tensor, "P m"], Float[Tensor, "m s"]]:
    """An orthonormal basis of what is left of the images, and the images in it; empty where that is rounding."""
    columns, triangle = torch.linalg.qr(images)
    left, lengths, right = torch.linalg.svd(triangle.double())
    count = min(room, int((lengths > _ROUNDING * torch.finfo(images.dtype).eps * norm).sum()))
    added = columns @ left[:, :count].to(images.dtype)
    if count:
        orthogonalise(added, vectors)
        added = torch.linalg.qr(added).Q
    sizes = (added.T @ images).double() if count else lengths[:0, None] * right[:0]
    return added, sizes
