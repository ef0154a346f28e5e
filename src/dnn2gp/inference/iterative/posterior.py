"""The posterior of an iterative inference: Z of Â⁻¹ = I − Z Zᵀ, and coupled samples of A⁻¹ and Â⁻¹."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import Factors, FeatureMap
from dnn2gp.features.budget.plan import Work
from dnn2gp.inference.base import Inference, Posterior, cotangent_bytes
from dnn2gp.inference.iterative.coupled import estimate
from dnn2gp.inference.iterative.curvature import Curvature
from dnn2gp.inference.iterative.report import Report
from dnn2gp.inference.iterative.samples import Nystrom, Samples
from dnn2gp.inference.iterative.solve import solve
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.inference.top_classes import has_many_classes, top_error
from dnn2gp.network.inputs import Inputs, in_parts, num_examples, take
from dnn2gp.support.errors import InputError, NotConvergedError
from dnn2gp.support.memory import chunks
from dnn2gp.weights.expansion import Expansion

# Training inputs at which the error is looked at.
_LOOKED_AT = 64
# Few samples estimate their own error poorly: up to this number of them, the reported error is larger by this factor.
_FEW, _MORE = 32, 1.25
# A solve for the mean leaves no output off by more than this number of posterior standard deviations.
_EXACT = 1e-3
# If rounding or the iteration limit ends the solve, an error of this many posterior standard deviations is accepted.
_WRONG = 0.05
# Weights whose variances are estimated at a time.
_ROWS = 1 << 14


@final
class IterativePosterior(Posterior):
    """N(μ, Σ̃) with Σ̃ = V^{½} A⁻¹ V^{½}, A = I + ΦᵀΦ."""

    facts: Report | None = None
    """What the inference did; None for a preconditioner."""

    def __init__(
        self,
        method: Inference,
        model: LinearModel,
        nystrom: Nystrom,
        samples: Samples,
        curvature: Curvature,
        max_iterations: int,
    ) -> None:
        """Â and the samples, in the coordinates in which the prior is N(0, I); the most iterations for the mean."""
        self.method, self.model, self.max_iterations = method, model, max_iterations
        self.nystrom, self.samples, self.curvature = nystrom, samples, curvature
        self.prior_precision = model.prior.precision

    @property
    def description(self) -> str:
        error = "" if self.facts is None else f", variances ± {self.facts.covariance_error:.1%}"
        return f"{self.name} posterior (rank {self.nystrom.root.shape[1]}, {self.num_samples} samples{error})"

    @property
    def num_samples(self) -> int:
        """S."""
        return self.samples.own.shape[1]

    def report(self) -> Report:
        """Rank, iterations, residuals, effective dimension, errors, time, passes and memory."""
        assert self.facts is not None
        return self.facts

    @staticmethod
    def restored(
        method: Inference, model: LinearModel, state: dict[str, Tensor], max_iterations: int
    ) -> IterativePosterior:
        """From `state`."""
        facts = Report.restored(state["report"])
        samples = Samples(state["samples"], state["differences"], state["log_dets"], facts.residual, facts.iterations)
        samples = replace(samples, truncation=facts.log_det_error, continued=facts.effective_dimension_error)
        nystrom, curvature = Nystrom.restored(state["root"]), Curvature(model, columns=1)
        found = IterativePosterior(method, model, nystrom, samples, curvature, max_iterations)
        found.facts = facts
        if "step" in state:
            found.step = state["step"]
        return found

    def precondition(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """V^{½} Â⁻¹ V^{½} v, without a pass over the data."""
        white = self.prior_precision.whiten(vectors.to(self.curvature.dtype).T).T
        return self.prior_precision.unwhiten(self.nystrom.solve(white)).double()

    def covariance_matmul(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Σ̃ v by conjugate gradients, so accurately that no output moves by more than 0.001 posterior deviations."""
        found = self.curvature.remembered("system", lambda: {"solution": self._solved(vectors)})
        return found["solution"].to(self.nystrom.root.device)

    def _solved(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Σ̃ v."""
        white = self.prior_precision.whiten(vectors.to(self.curvature.dtype).T).T
        size = (white * self.nystrom.solve(white)).sum(0).max().clamp(min=0).sqrt().item()
        rounding = 10 * torch.finfo(white.dtype).eps
        accuracy = max(rounding, min(0.1, _EXACT / max(size, rounding)))
        words, passes = "posterior mean", self.curvature.passes
        found = solve(
            self.curvature.shifted, white, self.nystrom.solve, accuracy, self.max_iterations, words, passes=passes
        )
        left = found.residuals.max().item() * size
        if left > _WRONG:
            raise NotConvergedError(
                f"The system for the posterior mean was solved only up to {left:.1g} posterior standard deviations in "
                f"{found.iterations.max().item()} iterations. Use float64, a larger rank than "
                f"{self.nystrom.root.shape[1]}, or a larger prior precision δ or noise σ."
            )
        return self.prior_precision.unwhiten(found.solution).double()

    def covariance(self, features: FeatureMap, inputs: Inputs, other: Inputs | None = None) -> Float[Tensor, "N K M K"]:
        """J(x) Σ̃ J(x')ᵀ from the samples, rescaled at each input so that its own block is that of `marginal`."""
        left = self._rescaled(features, inputs)
        right = left if other is None else self._rescaled(features, other)
        return torch.einsum("nks,mls->nkml", left, right)

    def _rescaled(self, features: FeatureMap, inputs: Inputs) -> Float[Tensor, "N K S"]:
        """Jθ / √S, multiplied by V^{½} Ŝ^{−½} of each input."""
        found = []
        parts = list(chunks(num_examples(inputs), self.chunk(features, inputs)))
        for _, some in in_parts(inputs, parts):
            wide = features.factors(some).to(torch.float64)
            pushed = self._pushed(wide, self.samples.own) / self.num_samples**0.5
            root = torch.linalg.cholesky(self.marginal(wide))
            own = torch.linalg.cholesky(pushed @ pushed.mT)
            found.append(root @ torch.linalg.solve_triangular(own, pushed, upper=False))
        return torch.cat(found)

    def marginal(self, factors: Factors) -> Float[Tensor, "n K K"]:
        return self.estimated(factors)[0]

    def estimated(self, factors: Factors) -> tuple[Float[Tensor, "n K K"], Float[Tensor, " n"]]:
        """J Σ̃ Jᵀ of each example by the coupled samples, with its error."""
        wide = factors.to(torch.float64)
        explained = self._pushed(wide, self.nystrom.root)
        total = self.prior_precision.double().marginal(wide) - explained @ explained.mT
        found = estimate(total, self._pushed(wide, self.samples.own), self._pushed(wide, self.samples.differences))
        inflation = _MORE if self.num_samples <= _FEW else 1.0
        return found.covariance, inflation * found.error

    def _pushed(self, factors: Factors, white: Float[Tensor, "P s"]) -> Float[Tensor, "n K s"]:
        return factors.push(self.prior_precision.unwhiten(white).double())

    def chunk(self, features: FeatureMap, inputs: Inputs, num_rows: int | None = None) -> int:
        """Counts the products with the basis and the samples, and a few K × K matrices of each input."""

        def used(factors: Factors) -> object:
            wide = factors.to(torch.float64)
            columns = self.nystrom.root, self.samples.own, self.samples.differences
            return self.prior_precision.double().marginal(wide), [self._pushed(wide, each) for each in columns]

        K, count = features.num_outputs if num_rows is None else num_rows, num_examples(inputs)
        work = Work("The predictive variance", used, (type(self), self.nystrom.root.shape[1], self.num_samples))
        extra = 20 * 8 * K**2 + cotangent_bytes(features, num_rows)
        return features.chunk(inputs, num_rows, work, fixed=2 * 8 * count * K * (K + 2), extra=extra)

    def looked_at(self) -> float:
        """The median relative standard deviation of the predictive variances of some training inputs."""
        expansion = self.model.expansion
        features, inputs = expansion.features, take(expansion.inputs, expansion.spread(_LOOKED_AT))
        many = has_many_classes(expansion)
        error = top_error(self, features, inputs) if many else self.estimated(features.factors(inputs))[1]
        return expansion.team.gathered(error).median().item()

    def samples_needed(self, error: float, tolerance: float) -> int:
        """How many samples bring this error below the tolerance: it is proportional to 1/√S for S samples."""
        inflated = _MORE if self.num_samples <= _FEW else 1.0
        return max(self.num_samples, ceil(self.num_samples * (error / inflated / tolerance) ** 2))

    def with_samples(self, samples: Samples) -> IterativePosterior:
        """With other samples."""
        return IterativePosterior(self.method, self.model, self.nystrom, samples, self.curvature, self.max_iterations)

    def log_det_ratio(self) -> Float[Tensor, ""]:
        return torch.tensor(self.report().log_det, dtype=torch.float64)

    @property
    def log_det_error(self) -> float:
        return self.report().log_det_error

    def effective_dimension(self) -> tuple[float, float]:
        """By the basis and the mean of ‖η‖²."""
        return self.report().effective_dimension, self.report().effective_dimension_error

    def weight_variances(self) -> Float[Tensor, " P"]:
        """Each weight on its own by the coupled samples."""
        found = []
        for rows in chunks(self.curvature.num_weights, _ROWS):
            total = 1 - self.nystrom.root[rows].double().square().sum(1)
            own, other = (each[rows].double()[:, None] for each in (self.samples.own, self.samples.differences))
            found.append(estimate(total[:, None, None], own, other).covariance[:, 0, 0])
        return torch.cat(found) * self.prior_precision.inverse_diagonal().double()

    def sample_weights(self, num_samples: int, generator: torch.Generator | None) -> Float[Tensor, "S P"]:
        """w = μ ± V^{½} θ, for some of the samples with random signs."""
        if num_samples > self.num_samples:
            raise InputError(
                f"num_samples: this posterior has {self.num_samples} samples of the weights; got {num_samples}. "
                f"Convert with Iterative(samples={num_samples}, tolerance=1e-6)."
            )
        signs = torch.randint(0, 2, (num_samples,), generator=generator, device=self.mean.device) * 2 - 1
        order = torch.randperm(self.num_samples, generator=generator, device=self.mean.device)[:num_samples]
        moves = self.prior_precision.unwhiten(self.samples.own[:, order]).double() * signs
        return (self.mean.double()[:, None] + moves).T.to(self.mean.dtype)

    def conditioned(self, expansion: Expansion) -> Posterior:
        """Continues the samples, unless so much is new that it is faster to start again."""
        return self.method.infer_more(self, expansion)

    def rough_given(self, expansion: Expansion) -> Posterior:
        return self.method.infer_more(self, expansion, rough=True)

    @property
    def bytes(self) -> int:
        tensors = self.nystrom.root, self.samples.own, self.samples.differences
        return sum(tensor.nbytes for tensor in tensors) + self.curvature.sites.kept_bytes

    def state(self) -> dict[str, Tensor]:
        state = {
            "root": self.nystrom.root,
            "samples": self.samples.own,
            "differences": self.samples.differences,
            "log_dets": self.samples.log_dets,
            "report": self.report().state(),
        }
        return state | {"step": self.step} if self.moves else state
