"""An iterative posterior given more data, from the posterior without them.

With the rows Φ₊ of the new data, A₊ = A + Φ₊ᵀΦ₊. A Nyström approximation Ĝ₊ of Φ₊ᵀΦ₊ needs products with the new data
alone, and Â₊ = Â + Ĝ₊ is below A₊ as Â is below A. The coupled samples θ and θ̂ continue with new noise ε₊,

    A₊ θ₊ = A θ + Φ₊ᵀε₊ ,        Â₊ θ̂₊ = Â θ̂ + P₊ Φ₊ᵀε₊ ,        Ĝ₊ = P₊ Φ₊ᵀΦ₊ ,

so that Cov(θ̂₊, θ₊) = A₊⁻¹ again. Conjugate gradients begin at θ with the residual Φ₊ᵀ(ε₊ − Φ₊θ). So neither a basis nor
a right-hand side is computed from the old data; they are needed in the iterations only, and for log |A₊|.

Eigenvalues λ of Ĝ + Ĝ₊ beyond a number of columns are dropped: along such a direction, the right-hand side
β ~ N(0, 1 + λ) becomes β / (1 + λ) + √(λ / (1 + λ)) ξ, whose variance and covariance with A₊θ₊ are 1, as Â₊ demands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.inference.iterative.basis import Basis, next_block, orthogonalise
from dnn2gp.inference.iterative.curvature import Curvature
from dnn2gp.inference.iterative.samples import EARLY, Nystrom, Samples, log_det_estimates
from dnn2gp.inference.iterative.solve import solve


@final
@dataclass(frozen=True, eq=False)
class Sum:
    """Ĝ + Ĝ₊ = E U diag(λ) Uᵀ Eᵀ, of which the first columns of U are kept and the others dropped."""

    old: Float[Tensor, " k"]
    """The eigenvalues of Ĝ, whose eigenvectors are the first columns of E."""
    vectors: Float[Tensor, "P m"]
    """E, orthonormal."""
    eigenvalues: Float[Tensor, " m"]
    """λ, the largest first, in float64."""
    small: Float[Tensor, "m m"]
    """U, in float64."""
    kept: int

    @staticmethod
    def of(old: Nystrom, new: Basis, most: int) -> Sum:
        """From Ĝ and Ĝ₊, with at most so many columns."""
        own_values, own = old.eigenpairs()
        values, turned = new.nystrom
        images = new.vectors @ turned.to(new.vectors.dtype)
        parts = orthogonalise(images, own)
        added, sizes = next_block(images, own, 1.0, len(own) - own.shape[1])
        coefficients = torch.cat([parts, sizes])
        small = torch.diag(torch.cat([own_values, own_values.new_zeros(len(sizes))]))
        small = small + coefficients * values @ coefficients.T
        found, basis = torch.linalg.eigh((small + small.T) / 2)
        vectors = torch.cat([own, added], 1)
        return Sum(own_values, vectors, found.flip(0).clamp(min=0), basis.flip(1), min(most, vectors.shape[1]))

    @property
    def largest(self) -> float:
        """The largest eigenvalue."""
        return self.eigenvalues[0].item() if len(self.eigenvalues) else 0.0

    def nystrom(self) -> Nystrom:
        """The approximation by the kept columns."""
        values, dtype = self.eigenvalues[: self.kept], self.vectors.dtype
        small = self.small[:, : self.kept] * (values / (1 + values)).sqrt()
        effective = (values / (1 + values)).sum().item()
        return Nystrom(self.vectors @ small.to(dtype), torch.log1p(values).sum().item(), effective)

    def right(
        self, guess: Float[Tensor, "P S"], pulled: Float[Tensor, "P S"], generator: torch.Generator
    ) -> Float[Tensor, "P S"]:
        """The right-hand side of θ̂₊ from θ̂ and P₊Φ₊ᵀε₊, with new noise along the directions that are dropped."""
        dtype, count = guess.dtype, len(self.old)
        own = self.vectors[:, :count]
        right = guess + pulled + own @ (self.old[:, None] * (own.T @ guess).double()).to(dtype)
        values, small = self.eigenvalues[self.kept :, None], self.small[:, self.kept :]
        if not len(values):
            return right
        along = small.T @ (self.vectors.T @ right).double()
        shape, device = along.shape, generator.device
        noise = torch.randn(shape, generator=generator, dtype=torch.float64, device=device).to(along)
        change = -along * values / (1 + values) + (values / (1 + values)).sqrt() * noise
        return right + self.vectors @ (small @ change).to(dtype)


def continued(
    samples: Samples,
    found: Sum,
    nystrom: Nystrom,
    basis: Basis,
    new: Curvature,
    whole: Curvature,
    generator: torch.Generator,
    accuracy: float,
    max_iterations: int,
) -> Samples:
    """θ₊ and η₊ = θ̂₊ − θ₊ from θ and η, without estimates of the log-determinant.

    Iterations end once the residual is below `accuracy` in each of the directions that the new data determine.
    """
    pulled = new.pull(new.random_sites(samples.own.shape[1], generator))
    guess = nystrom.solve(found.right(samples.own + samples.differences, basis.projected(pulled), generator))
    left = pulled.sub_(new.matmul(samples.own))
    squares = (left * nystrom.solve(left)).sum(0).double().max().clamp(min=torch.finfo(torch.float64).tiny).item()
    directions = min(new.num_sites, new.num_weights)
    share = min(1.0, (directions / squares) ** 0.5)
    accuracy *= share
    words, early = "samples given more data", EARLY * accuracy
    moved = solve(whole.shifted, left, nystrom.solve, accuracy, max_iterations, words, early, whole.passes)
    own = samples.own + moved.solution
    steps = moved.residuals.double().square() * moved.squares
    residual = (samples.residual**2 + steps.max().item() / new.num_weights) ** 0.5
    bias = samples.continued + moved.truncation(lambda values: 1 - 1 / values).mean().item()
    iterations = int(moved.iterations.max())
    return Samples(own, guess - own, samples.log_dets[:0], residual, iterations, continued=bias)


def log_dets(
    whole: Curvature, nystrom: Nystrom, count: int, generator: torch.Generator, accuracy: float, max_iterations: int
) -> tuple[Float[Tensor, " n"], float]:
    """Estimates of log |Â₊^{−½} A₊ Â₊^{−½}| from new right-hand sides b ~ N(0, A₊), and their bias."""
    right = whole.random((whole.num_weights, count), generator)
    right += whole.pull(whole.random_sites(count, generator))
    words = "log-determinant"
    found = solve(whole.shifted, right, nystrom.solve, accuracy, max_iterations, words, passes=whole.passes)
    return log_det_estimates(found)
