"""Gradient features (empirical Fisher): φ = gᵢ = ∇_w ℓᵢ(w), v = 1, D = 1, one column an example."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.base import FeatureMap, NetworkFeatures
from dnn2gp.inputs import Inputs, leaves


class GradientFeatures(FeatureMap):
    """φ_w(x, y) = ∇_w ℓ(y, f_w(x)) = J_w(x)ᵀ r_w(x, y) ∈ R^{P×1}, so that ∇²ℓ ≈ φ φᵀ.

    An example is x with the residual r_w(x, y) that it has at the anchor: the tuple that `pair` makes.
    """

    def __init__(self, jacobian: NetworkFeatures, form: Inputs) -> None:
        """Gradients at the anchor of `jacobian`; `form` shows how the inputs x are packed."""
        self.jacobian_features = jacobian
        self.anchor, self.memory_budget = jacobian.anchor, jacobian.memory_budget
        self.num_weights, self.num_outputs = jacobian.num_weights, 1
        self.form = form

    @staticmethod
    def pair(inputs: Inputs, residual: Float[Tensor, "N K"]) -> tuple[Tensor, ...]:
        """(x, r_w(x, y)) as one set of inputs."""
        return (*leaves(inputs), residual)

    def jacobian(self, inputs: Inputs) -> Float[Tensor, "N 1 P"]:
        """gᵢᵀ of each example."""
        residual = leaves(inputs)[-1]
        return self.jacobian_features.pull_each(self.examples(inputs), residual).unsqueeze(1)

    def examples(self, inputs: Inputs) -> Inputs:
        """x of each pair, packed as the network takes it."""
        xs = leaves(inputs)[:-1]
        if isinstance(self.form, Tensor):
            return xs[0]
        if isinstance(self.form, dict):
            return dict(zip(self.form, xs, strict=True))
        return type(self.form)(xs)
