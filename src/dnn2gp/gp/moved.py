"""How far the mean of a GP is from its network, in units of the outputs, and the warning of convert about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from dnn2gp.features import GradientFeatures
from dnn2gp.gp.minimum import at_minimum
from dnn2gp.inference import Posterior
from dnn2gp.support.errors import NotAMinimumWarning, warn_user

# Training examples on which the movement is measured, evenly spread over the data.
_EXAMPLES = 100


@final
@dataclass(frozen=True)
class Movement:
    """The difference between the mean of the GP and the network on training inputs, root mean squares."""

    outputs: float
    """Of E f(x) − f_w(x), in the units of the outputs (logits for a classifier)."""
    deviation: float
    """The posterior standard deviation of an output, in the same units."""

    @staticmethod
    def of(posterior: Posterior) -> Movement:
        """Measured on at most 100 training examples."""
        expansion = posterior.model.expansion
        count = min(_EXAMPLES, expansion.num_examples)
        index = torch.linspace(0, expansion.num_examples - 1, count, device=expansion.root.device).round().long()
        few = expansion.subset(index)
        features, inputs = few.features, few.inputs
        if isinstance(features, GradientFeatures):
            features, inputs = features.jacobian_features, features.examples(inputs)
        latent = posterior.latent(features, inputs)
        moved = (latent.outputs + latent.shift - features.outputs(inputs)).double()
        variances = latent.covariance.diagonal(dim1=1, dim2=2).double()
        return Movement(moved.square().mean().sqrt().item(), variances.mean().sqrt().item())


def warn_if_moved(posterior: Posterior, network: nn.Module, tuned: str | None) -> None:
    """Warn, in one sentence, if the mean of the GP is not the network because the weights are not at a minimum."""
    model = posterior.model
    if not posterior.moves or at_minimum(model.relative_gradient(), posterior.step_bound()):
        return
    moved = Movement.of(posterior)
    units = "units of the targets" if model.expansion.quadratic else "logits"
    mode = " in eval mode" if any(isinstance(part, _NormBase) for part in network.modules()) else ""
    prior = f" with {tuned}, which the evidence prefers" if tuned is not None else " with this prior"
    warn_user(
        f"The weights are not at a minimum of the loss{prior}, so the mean of the GP differs from the network by "
        f"{moved.outputs:.2g} {units} on the training data ({moved.outputs / moved.deviation:.2g} posterior standard "
        f"deviations): pass mean=NetworkOutput() to keep the network's own predictions, or continue training{mode} on "
        "all data at once.",
        NotAMinimumWarning,
    )
