"""Coupled samples: θ ~ N(0, A⁻¹) by conjugate gradients, and θ̂ ~ N(0, Â⁻¹) from the same noise without any pass.

With A = I + ΦᵀΦ, the Nyström approximation Â = I + Ĝ of `basis.py`, and ζ, ε ~ N(0, I),

    A θ = ζ + Φᵀε ,        Â θ̂ = ζ + GQ (QᵀGQ)⁻¹ Qᵀ Φᵀε .

Then Cov(θ̂, θ) = A⁻¹, so that η = θ̂ − θ is independent of θ and Cov(η) = Â⁻¹ − A⁻¹. θ is found by conjugate gradients
that are preconditioned with Â; their coefficients give log |A| as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.inference.iterative.basis import Basis
from dnn2gp.inference.iterative.curvature import Curvature
from dnn2gp.inference.iterative.solve import Solution, solve
from dnn2gp.support.errors import NotPositiveDefiniteError

EARLY = 0.3
"""A residual that is reached in two or three iterations is reduced by this further factor."""
# The bias of tr(Â⁻¹ − A⁻¹) as a share of that of log |Â^{−½} A Â^{−½}|, in which small h − 1 count fully, too.
_SHARE = 0.5


@final
@dataclass(frozen=True, eq=False)
class Nystrom:
    """Â⁻¹ = I − Z Zᵀ, with Z = Q⁺ U diag(λ / (1 + λ))^{½} of Ĝ = Q⁺ U diag(λ) Uᵀ Q⁺ᵀ."""

    root: Float[Tensor, "P k"]
    """Z."""
    log_det: float
    """log |Â|."""
    effective: float
    """tr Ĝ Â⁻¹, the part of the effective dimension that the basis has found."""

    @staticmethod
    def of(basis: Basis) -> Nystrom:
        """From the basis; its vectors are not kept."""
        values, vectors = basis.nystrom
        small = vectors * (values / (1 + values)).sqrt()
        root = basis.vectors @ small.to(basis.vectors.dtype)
        return Nystrom(root, torch.log1p(values).sum().item(), (values / (1 + values)).sum().item())

    @staticmethod
    def restored(root: Float[Tensor, "P k"]) -> Nystrom:
        """From Z alone, with log |Â| = −log |I − ZᵀZ|."""
        values = torch.linalg.eigvalsh(root.double().T @ root.double())
        if len(values) and not values[-1] < 1:
            raise NotPositiveDefiniteError(f"I − Z Zᵀ has the eigenvalue {1 - values[-1].item():.3g}.")
        return Nystrom(root, -torch.log1p(-values).sum().item(), values.sum().item())

    def eigenpairs(self) -> tuple[Float[Tensor, " k"], Float[Tensor, "P k"]]:
        """λ in float64 and orthonormal columns E with Ĝ = E diag(λ) Eᵀ, from ZᵀZ, whose eigenvalues are λ / (1 + λ)."""
        values, vectors = torch.linalg.eigh(self.root.double().T @ self.root.double())
        kept = values > torch.finfo(self.root.dtype).eps ** (2 / 3)  # others have no accurate vector, and no effect
        values, vectors = values[kept], vectors[:, kept] / values[kept].sqrt()
        return values / (1 - values), self.root @ vectors.to(self.root.dtype)

    def solve(self, vectors: Float[Tensor, "P s"]) -> Float[Tensor, "P s"]:
        """Â⁻¹ v."""
        return torch.addmm(vectors, self.root, self.root.T @ vectors, alpha=-1)


@final
@dataclass(frozen=True, eq=False)
class Samples:
    """θ and η = θ̂ − θ, and how they were found."""

    own: Float[Tensor, "P S"]
    """θ."""
    differences: Float[Tensor, "P S"]
    """η."""
    log_dets: Float[Tensor, " n"]
    """Unbiased estimates of log |Â^{−½} A Â^{−½}|: one from each sample, or fewer if these were continued."""
    residual: float
    """The largest residual that conjugate gradients left, relative to the right-hand side."""
    iterations: int
    truncation: float = 0.0
    """The bias of `log_det` that this residual causes, by extrapolation."""
    continued: float = 0.0
    """The bias of the mean of ‖η‖² that it causes."""

    @staticmethod
    def draw(
        curvature: Curvature,
        basis: Basis,
        nystrom: Nystrom,
        count: int,
        generator: torch.Generator,
        accuracy: float,
        max_iterations: int,
        words: str = "samples",
    ) -> Samples:
        """Draw `count` pairs of samples; the progress bar shows `words`."""
        prior = curvature.random((curvature.num_weights, count), generator)
        pulled = curvature.pull(curvature.random_sites(count, generator))
        right, early = prior + pulled, EARLY * accuracy
        found = solve(curvature.shifted, right, nystrom.solve, accuracy, max_iterations, words, early, curvature.passes)
        differences = nystrom.solve(prior + basis.projected(pulled)) - found.solution
        estimates, truncation = log_det_estimates(found)
        residual, iterations = found.residuals.max().item(), int(found.iterations.max())
        return Samples(found.solution, differences, estimates, residual, iterations, truncation, _SHARE * truncation)

    @staticmethod
    def kept(
        curvature: Curvature,
        basis: Basis,
        nystrom: Nystrom,
        count: int,
        generator: torch.Generator,
        accuracy: float,
        max_iterations: int,
        words: str = "samples",
    ) -> Samples:
        """`draw`, as a step that a checkpoint keeps, with the state of the generator."""

        def drawn() -> dict[str, Tensor]:
            new = Samples.draw(curvature, basis, nystrom, count, generator, accuracy, max_iterations, words)
            numbers = torch.tensor([new.residual, float(new.iterations), new.truncation], dtype=torch.float64)
            tensors = {"own": new.own, "differences": new.differences, "log_dets": new.log_dets}
            return {**tensors, "numbers": numbers, "generator": generator.get_state()}

        found = curvature.remembered("samples", drawn)
        generator.set_state(found["generator"].cpu())
        residual, iterations, bias = found["numbers"].tolist()
        own, differences = (found[name].to(nystrom.root) for name in ("own", "differences"))
        log_dets = found["log_dets"].to(own.device)
        return Samples(own, differences, log_dets, residual, int(iterations), bias, _SHARE * bias)

    @staticmethod
    def none(like: Float[Tensor, "P k"]) -> Samples:
        """No samples."""
        return Samples(like[:, :0], like[:, :0], like.new_zeros(0, dtype=torch.float64), 0.0, 0)

    def log_det(self) -> tuple[float, float]:
        """log |Â^{−½} A Â^{−½}|, and its error: the standard error and the bias."""
        return self.log_dets.mean().item(), hypot(standard_error(self.log_dets), self.truncation)

    def effective(self) -> tuple[float, float]:
        """tr(Â⁻¹ − A⁻¹), the mean of ‖η‖², and its error."""
        squares = self.differences.double().square().sum(0)
        return squares.mean().item(), hypot(standard_error(squares), self.continued)

    def joined(self, other: Samples) -> Samples:
        """These samples together with others."""
        return Samples(
            torch.cat([self.own, other.own], 1),
            torch.cat([self.differences, other.differences], 1),
            torch.cat([self.log_dets, other.log_dets]),
            max(self.residual, other.residual),
            max(self.iterations, other.iterations),
            max(self.truncation, other.truncation),
            max(self.continued, other.continued),
        )


def log_det_estimates(found: Solution) -> tuple[Float[Tensor, " S"], float]:
    """tr log H from each right-hand side b ~ N(0, A), with H = Â^{−½} A Â^{−½}, and the mean of what iterations missed.

    With b̃ = Â^{−½} b ~ N(0, H), the average of b̃ᵀ H⁻¹ log(H) b̃ is tr log H.
    """

    def function(values: Tensor) -> Tensor:
        return values.log() / values

    return found.quadrature(function), found.truncation(function).mean().item()


def standard_error(values: Float[Tensor, " n"]) -> float:
    """That of the mean; infinite for a single value."""
    return values.std().item() / len(values) ** 0.5 if len(values) > 1 else float("inf")
