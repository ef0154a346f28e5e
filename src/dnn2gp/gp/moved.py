"""How far the mean of a GP is from its network, in units of the outputs, and the warning of convert about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from dnn2gp.features import FeatureMap, GradientFeatures
from dnn2gp.gp.minimum import at_minimum
from dnn2gp.inference import Latent, Posterior, new_latent
from dnn2gp.likelihoods import (
    CategoricalLikelihood,
    ClassificationLikelihood,
    GaussianLikelihood,
    Likelihood,
    PoissonLikelihood,
)
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.errors import NotAMinimumWarning, warn_user
from dnn2gp.weights.expansion import Expansion

# Training examples on which the warning measures the movement.
_EXAMPLES = 100


@final
@dataclass(frozen=True)
class Movement:
    """The difference between the mean of the GP and the network on training inputs, root mean squares.

    Softmax ignores a constant added to all logits of an example, so that constant is removed. If only the covariance of
    the most probable classes is known, the deviation is that of their logits.
    """

    outputs: float
    """Of E f(x) − f_w(x), in the units of the outputs (logits for a classifier)."""
    deviation: float
    """The posterior standard deviation of an output, in the same units."""

    @property
    def relative(self) -> float:
        """The difference in posterior standard deviations; 0 if no output is uncertain."""
        return self.outputs / self.deviation if self.deviation > 0 else 0.0

    @staticmethod
    def of(latent: Latent, network: Float[Tensor, "n K"], likelihood: Likelihood) -> Movement:
        """From the posterior of f, and the outputs of the network, at the same inputs."""
        moved = latent.outputs.double() + latent.shift.double() - network.double()
        covariance = latent.covariance.double()
        if latent.split is not None:
            covariance = covariance[:, :-1, :-1]
        if isinstance(likelihood, CategoricalLikelihood):
            moved = moved - moved.mean(1, keepdim=True)
            covariance = covariance - covariance.mean(1, keepdim=True)
            covariance = covariance - covariance.mean(2, keepdim=True)
        variances = covariance.diagonal(dim1=1, dim2=2)
        return Movement(moved.square().mean().sqrt().item(), variances.mean().clamp(min=0).sqrt().item())


def units_of(likelihood: Likelihood) -> str:
    """The units of f."""
    if isinstance(likelihood, ClassificationLikelihood):
        return "logits"
    if isinstance(likelihood, PoissonLikelihood):
        return "log rates"
    return "units of the targets" if isinstance(likelihood, GaussianLikelihood) else "units of the outputs"


def spread(expansion: Expansion, count: int) -> tuple[Tensor, Expansion]:
    """At most `count` examples, evenly spread over the data: their indices and their sites."""
    index = expansion.spread(count)
    return index, expansion.subset(index)


def network_view(expansion: Expansion) -> tuple[FeatureMap, Inputs]:
    """The Jacobian and the inputs of the network itself, where the sites have gradient features."""
    features, inputs = expansion.features, expansion.inputs
    if isinstance(features, GradientFeatures):
        return features.jacobian_features, features.examples(inputs)
    return features, inputs


def warn_if_moved(posterior: Posterior, likelihood: Likelihood, network: nn.Module, tuned: str | None) -> None:
    """Warn, in one sentence, if the mean of the GP is not the network because the weights are not at a minimum."""
    model = posterior.model
    if not posterior.moves or at_minimum(model.relative_gradient(), posterior.step_bound()):
        return
    _, few = spread(model.expansion, _EXAMPLES)
    features, inputs = network_view(few)
    moved = Movement.of(new_latent(posterior, features, inputs), features.outputs(inputs), likelihood)
    mode = " in eval mode" if any(isinstance(part, _NormBase) for part in network.modules()) else ""
    prior = f" with {tuned}, which the evidence prefers" if tuned is not None else " with this prior"
    retrain = " (tune.gradient trains and tunes)" if tuned is not None else ""
    warn_user(
        f"The weights are not at a minimum of the loss{prior}, so the mean of the GP differs from the network by "
        f"about {moved.outputs:.2g} {units_of(likelihood)} on the training data ({moved.relative:.2g} posterior "
        "standard deviations): diagnose(gp) says whether that is better or worse, mean=NetworkOutput() keeps "
        "the outputs of the network as the mean, and training on all data at once"
        f"{mode} brings the two together{retrain}.",
        NotAMinimumWarning,
    )
