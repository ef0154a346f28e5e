"""Functions drawn from the posterior of a GP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import NetworkFeatures, StackedFeatures
from dnn2gp.inference.predictive import finite
from dnn2gp.network.inputs import Inputs


@final
@dataclass(frozen=True, eq=False)
class FunctionSamples:
    """Samples of whole functions, f_s(x) = [f_w(x) + J(x)(w_s − w)] / τ: the same functions at every call."""

    features: NetworkFeatures | StackedFeatures
    weights: Float[Tensor, "S P"]
    """w_s."""
    anchor: Float[Tensor, " P"]
    """w in the linear part: the anchor of the linear model."""
    temperature: float = 1.0
    """τ, by which the functions are divided."""

    def __call__(self, inputs: Inputs) -> Float[Tensor, "S N *shape"]:
        """The values of each function at the inputs."""
        network = self.features.network
        inputs = self.features.checked_new(inputs)
        moves = (self.weights - self.anchor).T
        values = self.features.outputs(inputs)[..., None] + self.features.jvp(inputs, moves)
        values = finite(values, "sample of f").unflatten(1, (-1, network.num_outputs)).mean(1)
        values = values if self.temperature == 1 else values / self.temperature
        return values.permute(2, 0, 1).reshape(len(self.weights), -1, *network.output_shape)
