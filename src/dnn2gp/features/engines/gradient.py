"""Gradient features (empirical Fisher): φ = gᵢ = ∇_w ℓᵢ(w), v = 1, D = 1, one column per example."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.budget.plan import MemoryTrial
from dnn2gp.features.checks import Cotangents, resolved
from dnn2gp.features.engines.network_features import NetworkFeatures
from dnn2gp.features.factors import Factors
from dnn2gp.features.feature_map import FeatureMap
from dnn2gp.network.inputs import Inputs, OnDemand, example_of, leaves, rebuilt
from dnn2gp.network.views import Beside


class GradientFeatures(FeatureMap):
    """φ_w(x, y) = ∇_w ℓ(y, f_w(x)) = J_w(x)ᵀ r_w(x, y) ∈ R^{P×1}, so that ∇²ℓ ≈ φ φᵀ.

    An example is x with the residual r_w(x, y) that it has at the anchor: the tuple that `pair` makes.
    """

    def __init__(self, jacobian: NetworkFeatures, form: Inputs) -> None:
        """Gradients at the anchor of `jacobian`; `form` shows how the inputs x are packed."""
        self.jacobian_features = jacobian
        self.anchor, self.memory_budget, self.knowledge = jacobian.anchor, jacobian.memory_budget, jacobian.knowledge
        self.num_weights, self.num_outputs, self.fewest = jacobian.num_weights, 1, jacobian.fewest
        self.form, self.team = form, jacobian.team

    @staticmethod
    def pair(inputs: Inputs, residual: Float[Tensor, "N K"]) -> Inputs:
        """(x, r_w(x, y)) as one set of inputs."""
        return Beside(inputs, residual) if isinstance(inputs, OnDemand) else (*leaves(inputs), residual)

    def outputs(self, inputs: Inputs) -> Float[Tensor, "N K"]:
        """f_w(x) of each pair's x."""
        return self.jacobian_features.outputs(self.examples(inputs))

    def factors(self, inputs: Inputs, cotangents: Cotangents | None = None, *, apart: bool = False) -> Factors:
        """gᵢᵀ of each example: rᵀJ, by the blocks of the network's engine."""
        residual = leaves(inputs)[-1].unsqueeze(-1)
        ones = residual.new_ones(len(residual), 1)  # what a function of "outputs" sees: v = 1
        columns = residual if cotangents is None else residual * resolved(cotangents, ones)
        return self.jacobian_features.factors(self.examples(inputs), columns, apart=apart)

    def least_bytes(self, inputs: Inputs, num_rows: int) -> int:
        return self.jacobian_features.least_bytes(self.examples(inputs), num_rows)

    def operations(self, inputs: Inputs, num_rows: int) -> float:
        return self.jacobian_features.operations(self.examples(inputs), num_rows)

    def _trial(self, inputs: Inputs, num_rows: int, apart: bool) -> MemoryTrial:
        """With the checks of the network's engine."""
        engine = self.jacobian_features
        with engine.unchecked():
            return engine.checked(super()._trial(inputs, num_rows, apart))

    def fast_chunk(self, inputs: Inputs, num_rows: int) -> int:
        return self.jacobian_features.fast_chunk(self.examples(inputs), num_rows)

    def streamed_chunk(self, inputs: Inputs, num_rows: int) -> int:
        return self.jacobian_features.streamed_chunk(self.examples(inputs), num_rows)

    def parts(self, inputs: Inputs) -> list[slice]:
        return self.jacobian_features.parts(self.examples(inputs))

    @property
    def layers(self) -> list[tuple[slice, ...]]:
        return self.jacobian_features.layers

    def kronecker_numbers(self, inputs: Inputs) -> int:
        return self.jacobian_features.kronecker_numbers(self.examples(inputs))

    def pair_operations(self, inputs: Inputs, left_rows: int, right_rows: int, *, trace: bool = False) -> float:
        return self.jacobian_features.pair_operations(self.examples(inputs), left_rows, right_rows, trace=trace)

    @staticmethod
    def residual(inputs: Inputs) -> Float[Tensor, "N K"]:
        """r_w(x, y) of each pair."""
        return inputs.column if isinstance(inputs, Beside) else leaves(inputs)[-1]

    def examples(self, inputs: Inputs) -> Inputs:
        """x of each pair, packed as the network takes it."""
        return inputs.inputs if isinstance(inputs, Beside) else rebuilt(leaves(inputs)[:-1], example_of(self.form))
