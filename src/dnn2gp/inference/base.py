"""What an inference must provide: the choice that a user makes, its cost, and the posterior that it computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import Factors, FeatureMap
from dnn2gp.features.budget.plan import Work
from dnn2gp.inference.evidence_parts import Decomposition, GroupedTerms, Groups
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.inference.predictive import JoinedLatent, Latent
from dnn2gp.network.inputs import Inputs, in_parts, num_examples
from dnn2gp.support.allocator import give_back, sparing
from dnn2gp.support.choice import Choice
from dnn2gp.support.errors import InputError
from dnn2gp.support.memory import chunks, readable
from dnn2gp.support.progress import track
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.structures import Dense, Precision, Structure


@dataclass(frozen=True)
class Cost:
    """The cost of an inference: the side of its matrix, the number of operations, and the memory in bytes."""

    space: str
    """The name of the inference."""
    size: int
    operations: float
    bytes: int
    accuracy: str = ""
    """In words; "exact" if nothing is approximated."""

    @property
    def matrix(self) -> str:
        """The matrix in words."""
        return f"a {self.size} × {self.size} matrix"

    @property
    def memory(self) -> str:
        """The memory in words."""
        return readable(self.bytes)

    def __str__(self) -> str:
        """One line: "weight space: a 17 × 17 matrix, 7e+03 operations, 6.94 kB; exact"."""
        accuracy = f"; {self.accuracy}" if self.accuracy else ""
        return f"{self.space}: {self.matrix}, {self.operations:.2g} operations, {self.memory}{accuracy}"


class Inference(Choice):
    """How the posterior p(w | D̃) = N(μ, Σ̃) of a linear model is computed: `WeightSpace()`, `FunctionSpace()`, …

    A new inference is one file with the choice and its `Posterior`.
    """

    automatic: ClassVar[bool] = False
    """Whether `convert` may choose it if the user does not pass an inference; only for exact ones."""

    shared: ClassVar[bool] = False
    """Whether it needs only sums over the examples, so that several processes can share them."""

    kinds: ClassVar[dict[str, type[Inference]]] = {}

    @property
    def exact(self) -> bool:
        """Whether mean and covariance are those of the linear model rather than an approximation of them."""
        return True

    @property
    def solves(self) -> bool:
        """Whether products with Σ̃ are those of the linear model, so that its mean is known."""
        return self.exact

    @abstractmethod
    def cost(self, num_sites: int, num_weights: int) -> Cost:
        """The cost for M sites and P weights."""

    @abstractmethod
    def infer(self, model: LinearModel) -> Posterior:
        """The posterior of the model."""

    @abstractmethod
    def restored(self, model: LinearModel, state: dict[str, Tensor]) -> Posterior:
        """The posterior with this `Posterior.state`, without computing anything again."""

    def infer_after(self, model: LinearModel, known: Decomposition | None) -> Posterior:
        """The posterior of a model whose decomposition is known, which an inference may use again."""
        return self.infer(model)

    def rough(self, model: LinearModel, known: Decomposition | None = None) -> Posterior:
        """A posterior of which only `precondition` is needed; by default, the posterior itself."""
        return self.infer_after(model, known)

    def infer_more(self, known: Posterior, expansion: Expansion, *, rough: bool = False) -> Posterior:
        """The posterior given more data than a known one, by default from all the data; see `Posterior.conditioned`.

        If `rough`, only its `precondition` is needed.
        """
        before = known.model
        joined = before.expansion.joined(expansion)
        return self.infer(LinearModel(joined, before.prior, before.of_step, before.centre))

    def with_structure(self, structure: Structure) -> Inference:
        """The same inference with a posterior precision of this structure."""
        if structure != Dense():
            raise InputError(
                f"structure={structure!r}: it approximates the precision of the weights, which inference={self!r} "
                "does not compute. Leave inference= out, or use inference=WeightSpace()."
            )
        return self

    def decomposition(self, model: LinearModel) -> Decomposition:
        """SᵀKS by its eigenvalues, from which the evidence follows for any single δ and σ.

        The prior of the model is N(0, V) with a diagonal V.
        """
        raise InputError(
            f"inference={self!r}: it does not provide the evidence as a function of δ and σ. Give both as numbers, "
            "e.g. prior_precision=1.0, or use another inference."
        )

    def grouped_terms(self, model: LinearModel, groups: Groups, num_noises: int) -> GroupedTerms:
        """The terms of the evidence for one δ per group of weights, and one σ for all outputs or one per output."""
        raise InputError(
            f"inference={self!r}: it does not provide the evidence with one δ per layer or one σ per output. Use the "
            "exact posterior, structure=Dense()."
        )


class Posterior(ABC):
    """The posterior p(w | D̃) = N(μ, Σ̃) of a linear model, accessed through the products that predictions need."""

    method: Inference
    """The inference that computed it."""
    model: LinearModel

    @property
    @abstractmethod
    def description(self) -> str:
        """A short description, e.g. "dense posterior in function space"."""

    @property
    def exact(self) -> bool:
        """Whether mean and covariance are those of the linear model rather than an approximation of them."""
        return self.method.exact

    @property
    def solves(self) -> bool:
        """Whether `covariance_matmul` is that of the linear model, so that the mean is known."""
        return self.method.solves

    @property
    def moves(self) -> bool:
        """Whether the mean is one Gauss-Newton step away from the anchor, rather than at the centre of the model."""
        return self.solves and self.model.centre is None

    @property
    def log_det_error(self) -> float:
        """The standard error of `log_det_ratio`; zero if it is exact."""
        return 0.0

    def precondition(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Σ̃ v, or a cheaper approximation of it."""
        return self.covariance_matmul(vectors)

    @abstractmethod
    def covariance_matmul(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Σ̃ v, in float64."""

    @abstractmethod
    def covariance(self, features: FeatureMap, inputs: Inputs, other: Inputs | None = None) -> Float[Tensor, "N K M K"]:
        """J(x) Σ̃ J(x')ᵀ for all pairs: the posterior kernel."""

    @abstractmethod
    def marginal(self, factors: Factors) -> Float[Tensor, "n K K"]:
        """J(x) Σ̃ J(x)ᵀ for each of a few examples, from the factors of J(x)."""

    def estimated(self, factors: Factors) -> tuple[Float[Tensor, "n K K"], Float[Tensor, " n"]]:
        """`marginal`, and the relative standard deviation of its trace: zero if inference is exact."""
        found = self.marginal(factors)
        return found, torch.zeros(len(found), dtype=found.dtype, device=found.device)

    @abstractmethod
    def log_det_ratio(self) -> Float[Tensor, ""]:
        """log |Σ̃⁻¹| − log |V⁻¹| = log |I + SᵀKS|."""

    def effective_dimension(self) -> tuple[float, float]:
        """d_eff = tr (I − V⁻¹Σ̃), the number of weights that the data determine, and its error: zero if exact.

        The prior precision V⁻¹ is diagonal.
        """
        shares = self.model.prior.precision.diagonal().double() * self.weight_variances()
        return (1 - shares).sum().item(), 0.0

    @abstractmethod
    def weight_variances(self) -> Float[Tensor, " P"]:
        """diag(Σ̃), in float64."""

    @abstractmethod
    def sample_weights(self, num_samples: int, generator: torch.Generator | None) -> Float[Tensor, "S P"]:
        """w ~ N(μ, Σ̃)."""

    @abstractmethod
    def conditioned(self, expansion: Expansion) -> Posterior:
        """The posterior given more data, expanded at the same anchor."""

    def rough_given(self, expansion: Expansion) -> Posterior:
        """`conditioned`, if only its `precondition` is needed."""
        return self.conditioned(expansion)

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """The tensors that were computed, for a file; `Inference.restored` is the inverse."""

    @property
    def name(self) -> str:
        """The name of the inference."""
        return self.method.name

    @property
    def bytes(self) -> int:
        """The memory that it holds: by default, that of its state twice, as a matrix and as its factor."""
        return 2 * sum(tensor.nbytes for tensor in self.state().values())

    def precision(self) -> Precision:
        """Σ̃⁻¹ as a matrix; by default P × P, computed here."""
        expansion = self.model.expansion
        prior = self.model.prior.precision
        return Dense().posterior_precision(prior, expansion.features, expansion.inputs, expansion.root)

    @cached_property
    def step(self) -> Float[Tensor, " P"]:
        """w − μ = Σ̃ ∇ℓ̄(w), the Gauss-Newton step from the anchor to the posterior mean, in float64.

        Zero if the model has a centre of its own, and for an approximation: its Σ̃ gives no Gauss-Newton step, so the
        mean stays at the anchor as in Eq. (4).
        """
        if not self.moves:
            return torch.zeros_like(self.model.expansion.anchor, dtype=torch.float64)
        if self.model.expansion.quadratic:
            return self.least_squares[0]
        return self.covariance_matmul(self.model.gradient[:, None])[:, 0]

    @cached_property
    def least_squares(self) -> tuple[Float[Tensor, " P"], float]:
        """For a Gaussian likelihood: the step w − μ, and the minimum (ỹ − Jm)ᵀ (Λ⁻¹ + K)⁻¹ (ỹ − Jm) that it reaches.

        By default as Σ̃ ∇ℓ̄(w), which cancels if the noise is small: ∇ℓ̄(w) grows with σ⁻² and Σ̃ shrinks with σ². An
        inference that can avoid this overrides it.
        """
        step = self.covariance_matmul(self.model.gradient[:, None])[:, 0]
        return step, self.model.misfit(step)

    def step_bound(self) -> float:
        """√(gᵀ Σ̃ g), g = ∇ℓ̄(w): the step Σ̃ g moves no output by more posterior standard deviations than this.

        |aᵀ Σ̃ g| ≤ √(aᵀ Σ̃ a) √(gᵀ Σ̃ g) for every row a of every Jacobian, by the Cauchy-Schwarz inequality.
        """
        moved = self.covariance_matmul(self.model.gradient[:, None])[:, 0]
        return max(0.0, (self.model.gradient @ moved).item()) ** 0.5

    @cached_property
    def mean(self) -> Float[Tensor, " P"]:
        """μ = w − Σ̃ ∇ℓ̄(w), or w + c if the model has a centre c."""
        anchor, centre = self.model.expansion.anchor, self.model.centre
        if centre is not None:
            return (self.model.expansion.features.anchor.double() + centre).to(anchor.dtype)
        return (anchor.double() - self.step).to(anchor.dtype)

    def recentred(self, centre: Float[Tensor, " P"]) -> Posterior:
        """The same covariance around another centre: predictions at f_w(x) + J(x)c."""
        found = copy(self)
        found.model = replace(self.model, centre=centre)
        for cached in ("step", "mean"):
            vars(found).pop(cached, None)
        return found

    def gaussian(self) -> Gaussian:
        """N(μ, Σ̃), with the precision as a matrix."""
        return Gaussian(self.mean, self.precision())

    def latent(self, features: FeatureMap, inputs: Inputs) -> Latent:
        """Outputs, shift and covariance of f at each input, from one pass over the inputs, one chunk at a time."""
        parts, size = JoinedLatent(num_examples(inputs)), self.chunk(features, inputs)
        places = list(chunks(num_examples(inputs), size))
        for part, own in sparing(track(in_parts(inputs, places), "predictions", len(places)), features.budget()):
            outputs, factors = features.outputs_and_factors(own)
            del own
            give_back(features.budget())  # the memory that computing them needed
            outputs, shift = self._centred(outputs, factors)
            parts.add(part, Latent(outputs, shift, *self.estimated(factors)))
            del outputs, factors, shift
        return parts.result()

    def _centred(
        self, outputs: Float[Tensor, "n K"], factors: Factors
    ) -> tuple[Float[Tensor, "n K"], Float[Tensor, "n K"]]:
        """The outputs about which predictions expand h, and how far the mean of f is from them."""
        if self.moves:
            return outputs, -factors.push(self.step[:, None])[..., 0]
        centre = self.model.centre
        if centre is not None and bool(centre.any()):
            outputs = outputs + factors.push(centre[:, None], torch.float64)[..., 0].to(outputs.dtype)
        return outputs, torch.zeros_like(outputs)

    def means(self, features: FeatureMap, inputs: Inputs) -> tuple[Float[Tensor, "N K"], Float[Tensor, "N K"]]:
        """The outputs and the shift of `latent` by passes through the network, without factors of the Jacobian."""
        outputs, centre = features.outputs(inputs), self.model.centre
        if self.moves:
            return outputs, -_pushed(features, inputs, self.step)
        if centre is not None and bool(centre.any()):
            outputs = outputs + _pushed(features, inputs, centre)
        return outputs, torch.zeros_like(outputs)

    def chunk(self, features: FeatureMap, inputs: Inputs, num_rows: int | None = None) -> int:
        """The number of test inputs at a time in `latent`; by default from the measured memory of mean and variance.

        `num_rows`: the number of functionals of f whose covariance is computed, in place of all K outputs.
        """

        def used(factors: Factors) -> object:
            zeros = features.anchor.new_zeros(factors.num_examples, factors.num_rows)
            return self._centred(zeros, factors), self.marginal(factors)

        K = features.num_outputs if num_rows is None else num_rows
        by = self.step if self.moves else self.model.centre  # made before it is measured
        key = type(self), self.method, self.moves, by is not None and bool(by.any())
        work = Work("The predictive variance", used, key)
        fixed, extra = 2 * 8 * num_examples(inputs) * K * (K + 2), 4 * 8 * K**2 + cotangent_bytes(features, num_rows)
        return features.chunk(inputs, num_rows, work, fixed=fixed, extra=extra)


def cotangent_bytes(features: FeatureMap, num_rows: int | None) -> int:
    """The memory of U for one example while it is made; none if it is the identity."""
    return 0 if num_rows is None else 3 * 8 * features.num_outputs * num_rows


def _pushed(features: FeatureMap, inputs: Inputs, vector: Float[Tensor, " P"]) -> Float[Tensor, "N K"]:
    return features.jvp(inputs, vector[:, None].to(features.anchor.dtype))[..., 0]
