"""Iterative(): inference for sizes at which no matrix of the weights or of the data fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import final

import torch
from torch import Tensor

from dnn2gp.inference.base import Cost, Inference, Posterior
from dnn2gp.inference.evidence_parts import Decomposition
from dnn2gp.inference.iterative.basis import Basis
from dnn2gp.inference.iterative.curvature import Curvature
from dnn2gp.inference.iterative.more_data import Sum, continued, log_dets
from dnn2gp.inference.iterative.posterior import IterativePosterior
from dnn2gp.inference.iterative.report import Report
from dnn2gp.inference.iterative.samples import Nystrom, Samples
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.inference.orthogonal import check_rounding
from dnn2gp.support.errors import InputError
from dnn2gp.support.memory import require
from dnn2gp.support.numbers import whole_number
from dnn2gp.weights.expansion import Expansion

# Columns that are multiplied with the curvature at a time while the basis grows, and how often that must happen: with
# fewer rounds, the quadrature of the spectrum is not accurate.
_BLOCK, _ROUNDS = 64, 8
# Conjugate gradients end at this relative residual: the error that it leaves is far below that of the samples.
_RESIDUAL = 0.07
# A solve for the mean may take this multiple of the iterations of a sample.
_PATIENCE = 20
# The number of samples drawn first, from which the number needed is estimated.
_FIRST = 16
# Given more data, samples are continued up to this residual along the directions that the new data determine, and the
# log-determinant is estimated from a few systems that are solved up to this one.
_CONTINUED, _LOG_DET = 0.2, 0.02
# Given more data, inference starts again if these are more than this share of the old ones, if the residuals that the
# samples have accumulated exceed this, or if the error exceeds the tolerance by this factor and samples can be added.
_NEW, _ADDED_UP, _MISSED = 0.5, 0.2, 1.25


@final
@dataclass(frozen=True)
class Iterative(Inference):
    """Σ̃ from a low-rank basis of the curvature, corrected by samples that conjugate gradients find.

    Only products with ΦᵀΦ are computed: memory grows with P (rank + 2 samples), and time with the number of passes over
    the data. Every answer comes with an error estimate.
    """

    name = "iterative"
    shared = True

    rank: int = 512
    """Columns of the basis."""
    samples: int = 64
    """The largest number of pairs of coupled samples."""
    tolerance: float = 0.05
    """Sampling stops once the relative standard deviation of predictive variances is below this."""
    max_iterations: int = 20
    """The maximum number of conjugate-gradient iterations per sample."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rank", "samples", "max_iterations"):
            whole_number(name, getattr(self, name))
        whole_number("seed", self.seed, least=0)
        if not 0 < self.tolerance < 1:
            raise InputError(f"tolerance: expected a number between 0 and 1, e.g. 0.05; got {self.tolerance!r}.")

    @property
    def exact(self) -> bool:
        return False

    @property
    def solves(self) -> bool:
        return True

    def cost(self, num_sites: int, num_weights: int) -> Cost:
        """4 M P operations for each column of the basis, and for each iteration of each sample."""
        rank = min(self.rank, num_weights)
        columns = rank + self.samples * self.max_iterations / 2
        return Cost(self.name, rank, 4.0 * num_sites * num_weights * columns, self.bytes(num_weights, 4))

    def decomposition(self, model: LinearModel) -> Decomposition:
        """Ritz values of ΦᵀΦ with their weights, by block Gauss quadrature."""
        curvature = self._curvature(model)
        basis, outputs = self._basis(curvature, model)
        nodes, weights = basis.quadrature()
        if outputs is None:
            return Decomposition(nodes, weights=weights, basis=basis)
        squares = torch.where(nodes > 0, basis.along_first() / nodes.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
        beside = max(0.0, outputs - squares.sum().item())
        return Decomposition(nodes, squares, beside, weights, basis)

    def infer(self, model: LinearModel) -> IterativePosterior:
        return self.infer_after(model, None)

    def infer_after(self, model: LinearModel, known: Decomposition | None) -> IterativePosterior:
        """The posterior, with the basis that the evidence has already computed, if there is one."""
        begin, curvature = perf_counter(), self._curvature(model)
        basis = self._known(curvature, model, known)
        nystrom, generator = Nystrom.of(basis), self._generator(model, 1)

        def draw(count: int, words: str) -> Samples:
            return Samples.kept(curvature, basis, nystrom, count, generator, _RESIDUAL, self.max_iterations, words)

        count = min(_FIRST, self.samples)
        first = draw(count, f"first {count} samples")
        found = IterativePosterior(self, model, nystrom, first, curvature, self._patience)
        error = found.looked_at()
        needed = min(self.samples, found.samples_needed(error, self.tolerance))
        if needed > found.num_samples:
            count = needed - found.num_samples
            more = draw(count, f"{count} more samples (variances ± {error:.1%} so far)")
            found = found.with_samples(found.samples.joined(more))
            error = found.looked_at()
        check_rounding(found, 1 + basis.largest)
        found.facts = self._report(found, basis.rank, error, perf_counter() - begin)
        return found

    def infer_more(self, known: Posterior, expansion: Expansion, *, rough: bool = False) -> IterativePosterior:
        """The posterior given more data, continued from one without them; if `rough`, without samples.

        It starts again if much is new, if the samples have been continued so often that their residuals have added up,
        or if more samples are needed for the tolerance.
        """
        assert isinstance(known, IterativePosterior)
        begin, before = perf_counter(), known.model
        model = LinearModel(before.expansion.joined(expansion), before.prior, before.of_step, before.centre)
        many = expansion.num_examples > _NEW * before.expansion.num_examples
        if many or (known.samples.residual > _ADDED_UP and not rough):
            return self.rough(model) if rough else self.infer(model)
        new = self._curvature(LinearModel(expansion, before.prior), 0 if rough else None, known.nystrom.root.shape[1])
        generator = self._generator(model, 2 * model.expansion.num_sites)
        width = self._width(new.num_weights)
        start = new.random((new.num_weights, width), generator)
        basis = Basis.of(new.matmul, start, self.rank, width)
        total = Sum.of(known.nystrom, basis, self.rank + width)
        nystrom, whole = total.nystrom(), self._curvature(model, 0 if rough else None, known.nystrom.root.shape[1])
        if rough:
            none = Samples.none(nystrom.root)
            return IterativePosterior(self, model, nystrom, none, whole, self._patience)
        samples = continued(
            known.samples, total, nystrom, basis, new, whole, generator, _CONTINUED, self.max_iterations
        )
        count = min(_FIRST, self.samples)
        estimates, bias = log_dets(whole, nystrom, count, generator, _LOG_DET, 2 * self.max_iterations)
        samples = replace(samples, log_dets=estimates, truncation=bias)
        found = IterativePosterior(self, model, nystrom, samples, whole, self._patience)
        error = found.looked_at()
        if error > _MISSED * self.tolerance and found.num_samples < self.samples:
            return self.infer(model)
        check_rounding(found, 1 + total.largest)
        whole.add(new)
        found.facts = self._report(found, nystrom.root.shape[1], error, perf_counter() - begin)
        return found

    def rough(self, model: LinearModel, known: Decomposition | None = None) -> IterativePosterior:
        """A posterior without samples, which serves as a preconditioner."""
        curvature = self._curvature(model, samples=0)
        nystrom = Nystrom.of(self._known(curvature, model, known))
        none = Samples.none(nystrom.root)
        return IterativePosterior(self, model, nystrom, none, curvature, self._patience)

    def restored(self, model: LinearModel, state: dict[str, Tensor]) -> IterativePosterior:
        return IterativePosterior.restored(self, model, state, self._patience)

    @property
    def _patience(self) -> int:
        """The most iterations for the mean, which is solved more accurately than samples."""
        return _PATIENCE * self.max_iterations

    def _report(self, found: IterativePosterior, rank: int, error: float, seconds: float) -> Report:
        samples, curvature = found.samples, found.curvature
        log_det, log_det_error = found.nystrom.log_det, samples.log_det()
        effective, effective_error = samples.effective()
        return Report(
            rank=rank,
            samples=found.num_samples,
            iterations=samples.iterations,
            residual=samples.residual,
            effective_dimension=found.nystrom.effective + effective,
            effective_dimension_error=effective_error,
            log_det=log_det + log_det_error[0],
            log_det_error=log_det_error[1],
            covariance_error=error,
            tolerance=self.tolerance,
            passes=curvature.passes,
            columns=curvature.columns,
            seconds=seconds,
            bytes=sum(tensor.nbytes for tensor in (found.nystrom.root, samples.own, samples.differences)),
        )

    def _known(self, curvature: Curvature, model: LinearModel, known: Decomposition | None) -> Basis:
        if known is not None and isinstance(known.basis, Basis):
            return known.basis
        return self._basis(curvature, model)[0]

    def _basis(self, curvature: Curvature, model: LinearModel) -> tuple[Basis, float | None]:
        """A basis from random columns; for a Gaussian likelihood, also from Φᵀỹ, with ‖ỹ‖²."""
        size = curvature.num_weights
        width = self._width(size)
        start = curvature.random((size, width), self._generator(model, 0))
        if not model.expansion.quadratic or width == 1:
            return Basis.of(curvature.matmul, start, self.rank, width, curvature.remembered), None
        found = curvature.remembered("outputs", partial(_pulled_outputs, curvature, model, start.dtype))
        start[:, 0] = found["pulled"].to(start)
        return Basis.of(curvature.matmul, start, self.rank, width - 1, curvature.remembered), found["squares"].item()

    def _curvature(self, model: LinearModel, samples: int | None = None, more: int = 0) -> Curvature:
        """Products with ΦᵀΦ of a model, with the memory for `more` columns besides those of an inference."""
        anchor, features = model.expansion.anchor, model.expansion.features
        needed = self.bytes(len(anchor), anchor.element_size(), samples) + more * anchor.nbytes
        rank = min(self.rank, len(anchor))
        smaller = f"Iterative(rank={max(1, rank // 2)}, samples={max(1, self.samples // 2)})"
        require(
            needed,
            features.budget(),
            f"A basis of rank {rank} and {self.samples} samples of {len(anchor)} weights",
            f"Use a smaller rank or fewer samples, e.g. {smaller}.",
        )
        columns = max(self._width(len(anchor)), self.samples if samples is None else samples)
        return Curvature(model, columns, needed)

    def bytes(self, num_weights: int, itemsize: int, samples: int | None = None) -> int:
        """The basis with its rotation, and the samples with their residuals, directions and images."""
        rank = min(self.rank, num_weights)
        columns = 2 * rank + 2 * self._width(num_weights) + 8 * (self.samples if samples is None else samples)
        return itemsize * num_weights * columns

    def _width(self, num_weights: int) -> int:
        """Columns that are multiplied with the curvature at a time."""
        return max(1, min(_BLOCK, min(self.rank, num_weights) // _ROUNDS))

    def _generator(self, model: LinearModel, stream: int) -> torch.Generator:
        generator = torch.Generator(device=model.expansion.anchor.device)
        return generator.manual_seed(2 * self.seed + stream)


def _pulled_outputs(curvature: Curvature, model: LinearModel, dtype: torch.dtype) -> dict[str, Tensor]:
    """Φᵀỹ and ‖ỹ‖²."""
    outputs = model.white_outputs(curvature.sites).to(dtype)[:, None]
    squares = model.expansion.team.total(outputs.double().square().sum().item())
    return {"pulled": curvature.pull(outputs)[:, 0], "squares": torch.tensor(squares, dtype=torch.float64)}
