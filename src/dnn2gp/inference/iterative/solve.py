"""Preconditioned conjugate gradients for several right-hand sides at once, and the quadrature that comes with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dnn2gp.inference.iterative.basis import Product
from dnn2gp.support.progress import bar

# The slowest decrease of the squared residual from which further iterations are extrapolated.
_SLOWEST = 0.9
# Steps that are too few for that.
_FEW = 3


@final
@dataclass(frozen=True, eq=False)
class Solution:
    """X with A X ≈ B, column by column, and what the iterations learned about A.

    In the coordinates in which the preconditioner is the identity, H = M^{−½} A M^{−½}, conjugate gradients are the
    Lanczos method: their coefficients give the tridiagonal matrix of H on the Krylov space of M^{−½} b.
    """

    solution: Float[Tensor, "P s"]
    residuals: Float[Tensor, " s"]
    """‖b − Ax‖ / ‖b‖ in the norm of M⁻¹."""
    iterations: Int[Tensor, " s"]
    squares: Float[Tensor, " s"]
    """bᵀM⁻¹b."""
    diagonals: Float[Tensor, "s i"]
    """The diagonal of the tridiagonal matrix of each column, followed by ones."""
    beside: Float[Tensor, "s i"]
    """The entries next to it, followed by zeros."""
    decrease: Float[Tensor, " s"]
    """By which factor the last iteration reduced the square of the residual."""

    def quadrature(self, function: Callable[[Tensor], Tensor]) -> Float[Tensor, " s"]:
        """bᵀM^{−½} f(H) M^{−½}b of each column."""
        return self._quadrature(function, self.diagonals, self.beside)

    def truncation(self, function: Callable[[Tensor], Tensor]) -> Float[Tensor, " s"]:
        """What further iterations would add to `quadrature`, if they go on as the last one did; f(1) = 0.

        Errors of Gauss quadrature decrease like the square of the residual, by a factor q in the last iteration: with a
        last change of d, the others sum up to d (q + q² + …) = d q / (1 − q).
        """
        place = torch.arange(self.diagonals.shape[1], device=self.iterations.device)
        last = self.iterations[:, None] - 1
        before = self._quadrature(
            function,
            torch.where(place == last, 1.0, self.diagonals),
            torch.where(place >= last - 1, 0.0, self.beside),
        )
        change, factor = (self.quadrature(function) - before).abs(), self.decrease.clamp(max=_SLOWEST)
        return change * factor / (1 - factor)

    def _quadrature(
        self, function: Callable[[Tensor], Tensor], diagonals: Float[Tensor, "s i"], beside: Float[Tensor, "s i"]
    ) -> Float[Tensor, " s"]:
        matrix = torch.diag_embed(diagonals)
        if diagonals.shape[1] > 1:
            edge = beside[:, :-1]
            matrix = matrix + torch.diag_embed(edge, 1) + torch.diag_embed(edge, -1)
        values, vectors = torch.linalg.eigh(matrix)
        return self.squares * (vectors[:, 0].square() * function(values)).sum(1)


def solve(
    matrix: Product,
    right: Float[Tensor, "P s"],
    precondition: Product,
    accuracy: float,
    max_iterations: int,
    words: str = "linear systems",
    early: float | None = None,
    passes: int = 0,
) -> Solution:
    """Reduce the residual of each column by the factor `accuracy`, with at most `max_iterations` steps.

    `early` is the factor for columns that take only two or three steps, from which `truncation` cannot extrapolate.
    `passes` over the data were made before; the progress bar shows how many there are, and the largest residual.
    """
    solution, residual = torch.zeros_like(right), right.clone()
    solved = precondition(residual)
    squares = _dots(residual, solved)
    sizes, direction = squares.clone(), solved
    count = right.shape[1]
    active = torch.arange(count, device=right.device)
    iterations = torch.zeros(count, dtype=torch.int64, device=right.device)
    lengths, ratios, decrease = [], [], torch.zeros_like(squares)
    relative = torch.where(squares > 0, 1.0, 0.0).to(torch.float64)
    with bar(words, max_iterations) as advance:
        for step in range(max_iterations):
            going = relative[active] > (accuracy if early is None or step > _FEW else early)
            if not bool(going.any()):
                break
            if not bool(going.all()):
                active, direction, residual, sizes = (
                    active[going],
                    direction[:, going],
                    residual[:, going],
                    sizes[going],
                )
            image = matrix(direction)
            length = sizes / _dots(direction, image)
            solution[:, active] += direction * length.to(direction.dtype)
            residual = residual - image * length.to(image.dtype)
            solved = precondition(residual)
            after = _dots(residual, solved).clamp(min=0)
            ratio = after / sizes
            lengths.append(_scattered(length, active, count, 1.0))
            ratios.append(_scattered(ratio, active, count, 0.0))
            decrease[active] = ratio
            direction, sizes = solved + direction * ratio.to(direction.dtype), after
            relative[active] = (after / squares[active]).sqrt()
            iterations[active] += 1
            advance(f"pass {passes + step + 1}, residual {relative.max().item():.2g}")
    matrices = _tridiagonal(lengths, ratios, iterations, squares)
    return Solution(solution, relative, iterations, squares, *matrices, decrease)


def _tridiagonal(
    lengths: list[Tensor], ratios: list[Tensor], iterations: Tensor, squares: Tensor
) -> tuple[Float[Tensor, "s i"], Float[Tensor, "s i"]]:
    """The matrix of the Lanczos method from the step lengths αⱼ and ratios βⱼ of conjugate gradients."""
    if not lengths:
        return torch.ones_like(squares)[:, None], torch.zeros_like(squares)[:, None]
    length, ratio = torch.stack(lengths, 1), torch.stack(ratios, 1)
    place = torch.arange(len(lengths), device=squares.device)
    diagonal = 1 / length
    diagonal[:, 1:] += ratio[:, :-1] / length[:, :-1]
    beside = ratio.sqrt() / length
    within = place < iterations[:, None]
    return torch.where(within, diagonal, 1.0), torch.where(place < iterations[:, None] - 1, beside, 0.0)


def _scattered(values: Tensor, index: Tensor, count: int, fill: float) -> Tensor:
    result = values.new_full((count,), fill)
    result[index] = values
    return result


def _dots(left: Float[Tensor, "P s"], right: Float[Tensor, "P s"]) -> Float[Tensor, " s"]:
    """The inner products of equal columns, in float64."""
    return torch.linalg.vecdot(left, right, dim=0).double()
