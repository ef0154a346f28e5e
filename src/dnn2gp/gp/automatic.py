"""The default of convert: which mean, and how wide, chosen from the training data alone or on a validation set.

Without validation data, leave-one-out at the mode of the linearised network chooses a and τ (docs/calibration.md has
the measurements that led here):

1. If the leave-one-out NLL at the mode is below the NLL of the network on its own training data, by more than a
   standard error, the network is underfit, and the GP predicts at the mode. It never does so if an approximate
   covariance allows leave-one-out only to first order, which overlooks what the mode has memorised.
2. A classifier with few examples per class keeps the probabilities of its network: without one of two examples, half of
   what is known of its class is lost, and leave-one-out says little about new inputs.
3. Otherwise it predicts around the network. The logits of the network are ρ times as large as those of the mode (root
   mean squares over the training data), so τ becomes ρτ but at least 1, and a becomes ½ min(1, ρ²) a.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import final

from jaxtyping import Float
from torch import Tensor

from dnn2gp.gp.calibrate import POINTS, Chosen, best_calibration, exceeds_error, score_scale
from dnn2gp.gp.means import at_mode, at_network
from dnn2gp.inference import (
    Decomposition,
    Inference,
    Latent,
    LeftOut,
    LinearModel,
    Posterior,
    left_out,
    training_latent,
)
from dnn2gp.inference.averages import Averages, averages
from dnn2gp.inference.calibration import NONE, Calibration
from dnn2gp.inference.choice import start_for
from dnn2gp.inference.split import Split
from dnn2gp.likelihoods import CategoricalLikelihood, ClassificationLikelihood, GaussianLikelihood, Likelihood
from dnn2gp.support.errors import CautiousWarning, IllConditionedError, NotAMinimumWarning, NotConvergedError, warn_user
from dnn2gp.support.memory import holding
from dnn2gp.weights.expansion import Expansion

# Examples whose leave-one-out predictions choose the calibration, evenly spread over the data.
_EXAMPLES = 2000
# The share of the covariance at the mode that is kept around the network: the best of 1, ½ and ¼ on split 0.
_SHARE = 0.5
# Nats per training example that the mode may lose to the network before the prior counts as stronger than in training.
_WORSE_FIT = 0.05
# The fewest examples of the class of a typical example for which leave-one-out chooses the calibration.
_PER_CLASS = 5
# Probabilities like those of the mean alone.
_AS_IT_IS = Calibration(1e-6)
# Posterior standard deviations by which the mode may be off where the posterior is an approximation anyway.
_ROUGH = 0.02


@final
@dataclass(frozen=True, eq=False)
class Predictor:
    """A posterior with its mean, and its calibration."""

    posterior: Posterior
    calibration: Calibration
    strong_prior: tuple[float, float] | None = None
    """The training NLLs of the network and of the mode, if the prior makes the latter fit the data much worse."""


def automatic(
    model: LinearModel, method: Inference, likelihood: Likelihood, known: Decomposition | None = None
) -> Predictor:
    """Mean and calibration from the training data, for a linear model whose sites are at the network's weights.

    The posterior there is freed once the one at the mode is known, so that only one of them takes memory.
    """
    expansion = model.expansion
    if expansion.quadratic:  # the mode is one exact step away, and σ is part of the evidence
        return Predictor(method.infer_after(model, known), NONE)
    mode = None
    if expansion.targets is not None:  # otherwise, features are gradients
        try:
            start = partial(start_for, method, model, known)
            mode = at_mode(start, likelihood, method, None if method.exact else _ROUGH)
        except NotConvergedError as error:
            warn_user(
                f"{error} The GP predicts around the network, without a calibration. Pass a validation set if you have "
                "one.",
                NotAMinimumWarning,
            )
    if mode is None:
        return Predictor(at_network(method.infer_after(model, known)), NONE)
    with holding(mode.bytes):
        return by_leave_one_out(mode, likelihood)


def by_leave_one_out(mode: Posterior, likelihood: Likelihood) -> Predictor:
    """Mean and calibration, for a posterior at the mode of the linearised network."""
    guess = Guess.of(mode, likelihood)
    if guess.underfit:
        return Predictor(mode, guess.at_mode)
    if guess.few:
        warn_user(
            f"Half of the training examples are in classes of fewer than {_PER_CLASS}, too few to calibrate the GP "
            "without further data: its probabilities are those of the network. Pass validation=(x, y).",
            CautiousWarning,
        )
    return Predictor(at_network(mode), guess.at_network, guess.strong_prior)


def warn_if_strong(nlls: tuple[float, float]) -> None:
    """Warn about a given prior that is stronger than that of the training."""
    network, mode = nlls
    warn_user(
        "The weights are not at a minimum of the loss with this prior, which is stronger than that of the training: on "
        f"the training data, the network has an NLL of {network:.2g}, but the linearised network, at its own minimum, "
        f"one of {mode:.2g}. The probabilities of the GP are probably too cautious. Leave prior_precision= out, so "
        "that the evidence chooses δ, or pass validation=(x, y). With AdamW, δ = N λ is only a guess.",
        NotAMinimumWarning,
    )


def few_per_class(expansion: Expansion, likelihood: Likelihood) -> bool:
    """Whether half of the training examples are in classes of fewer than five."""
    if not isinstance(likelihood, CategoricalLikelihood) or expansion.targets is None:
        return False
    labels = expansion.team.gathered(expansion.targets)
    return labels.bincount()[labels].median().item() < _PER_CLASS


@final
@dataclass(frozen=True)
class Guess:
    """What leave-one-out at the mode says: the calibration of either mean, and which of them to use."""

    at_mode: Calibration
    at_network: Calibration
    underfit: bool
    """Whether leave-one-out predicts the training examples better than the network that was trained on them."""
    strong_prior: tuple[float, float] | None = None
    """See `Predictor`."""
    few: bool = False
    """Whether classes have too few examples for leave-one-out: both calibrations then leave the mean as it is."""

    @staticmethod
    def of(mode: Posterior, likelihood: Likelihood) -> Guess:
        """For a posterior at the mode of the linearised network."""
        left = _LeaveOneOut.of(mode, likelihood)
        if few_per_class(mode.model.expansion, likelihood):
            return Guess(left.scored(_AS_IT_IS, left.mean), left.scored(_AS_IT_IS, left.network), False, few=True)
        careful = left.best(sharper=False).calibration
        underfit = left.beats_network(careful) and not left.first_order
        own = left.scored(left.best().calibration if underfit else careful, left.mean)
        around = left.scored(left.around_network(careful), left.network)
        return Guess(own, around, underfit, left.strong_prior())


def calibration_at_mode(mode: Posterior, likelihood: Likelihood) -> Calibration:
    """The calibration of predictions at the mode, or of an exact regression."""
    left = _LeaveOneOut.of(mode, likelihood)
    return left.scored(left.best().calibration, left.mean)


def calibration_at_network(mode: Posterior, likelihood: Likelihood) -> Calibration:
    """The calibration of predictions around the network."""
    left = _LeaveOneOut.of(mode, likelihood)
    return left.scored(left.around_network(left.best(sharper=False).calibration), left.network)


@final
@dataclass(frozen=True, eq=False)
class _LeaveOneOut:
    """Leave-one-out predictions of some training examples at the mode, and the outputs of the network there."""

    likelihood: Likelihood
    targets: Tensor
    mean: Float[Tensor, "n K"]
    """f₋ without the example."""
    covariance: Float[Tensor, "n C C"]
    mode: Float[Tensor, "n K"]
    """f at the mode."""
    network: Float[Tensor, "n K"]
    """f_w."""
    first_order: bool = False
    """Whether the covariance allows leave-one-out only to first order."""
    split: Split | None = None
    """The classes whose covariance is known, if there are many."""

    @staticmethod
    def of(mode: Posterior, likelihood: Likelihood) -> _LeaveOneOut:
        """From the posterior at the mode."""
        model = mode.model
        few, own = _some(model.expansion, likelihood)
        latent = training_latent(mode, few)
        f = (latent.outputs + latent.shift).double()
        left, first_order = _left_out(few, latent, mode)
        assert few.targets is not None
        network = few.features.outputs(few.inputs).double()
        found = f + left.shift, left.covariance, f, network
        mean, covariance, f, network = (few.team.gathered(each) for each in found)
        split = None if latent.split is None else latent.split.each(few.team.gathered)
        return _LeaveOneOut(own, few.team.gathered(few.targets), mean, covariance, f, network, first_order, split)

    def best(self, *, sharper: bool = True) -> Chosen:
        """The calibration with the smallest leave-one-out NLL."""
        return best_calibration(self._averages(self.mean), self.targets, self.likelihood, sharper=sharper, seen=True)

    def scored(self, calibration: Calibration, mean: Float[Tensor, "n K"]) -> Calibration:
        """The calibration with the scale of scores around this mean, from leave-one-out on the training examples."""
        return replace(calibration, scores=score_scale(self._averages(mean), self.likelihood))

    def beats_network(self, calibration: Calibration) -> bool:
        """Whether leave-one-out predicts the examples better than the network that was trained on them."""
        targets = self.targets.double() if self.targets.is_floating_point() else self.targets
        settings = calibration.scale, calibration.temperature, calibration.noise
        gains = self._averages(self.mean).scaled(*settings).log_prob(targets) - self.likelihood.log_prob(
            self.network, targets
        )
        return exceeds_error(gains, 1.0)

    def strong_prior(self) -> tuple[float, float] | None:
        """The NLLs of the network and of the mode, if a classifier at the mode fits these examples much worse."""
        if not isinstance(self.likelihood, ClassificationLikelihood):
            return None
        targets = self.targets.double() if self.targets.is_floating_point() else self.targets
        network, mode = (-self.likelihood.log_prob(f, targets) for f in (self.network, self.mode))
        lost = mode - network
        if lost.mean().item() <= _WORSE_FIT or not exceeds_error(lost, 2.0):
            return None
        return network.mean().item(), mode.mean().item()

    def around_network(self, at_mode: Calibration) -> Calibration:
        """A calibration at the mode, for the logits of the network."""
        if not isinstance(self.likelihood, ClassificationLikelihood):
            return at_mode
        size = self._size(self.mode).item()
        ratio = self._size(self.network).item() / size if size > 0 else 1.0
        scale = _SHARE * at_mode.scale * min(1.0, ratio**2)
        return Calibration(scale, max(1.0, ratio * at_mode.temperature))

    def _averages(self, mean: Float[Tensor, "n K"]) -> Averages:
        return averages(self.likelihood, mean, self.covariance, POINTS, self.split)

    def _size(self, f: Float[Tensor, "n K"]) -> Float[Tensor, ""]:
        """The root mean square of the logits, without the constant that softmax ignores."""
        f = f - f.mean(1, keepdim=True) if isinstance(self.likelihood, CategoricalLikelihood) else f
        return f.square().mean().sqrt()


def _left_out(expansion: Expansion, latent: Latent, mode: Posterior) -> tuple[LeftOut, bool]:
    """Leave-one-out, and whether it holds only to first order because the covariance allows no more."""
    if mode.solves:
        return left_out(expansion, latent, mode), False
    try:
        found = LeftOut.of(expansion, latent)
    except IllConditionedError:
        found = None
    defined = expansion.team.smallest(float(found is not None)) == 1
    return (LeftOut.infinitesimal(expansion, latent), True) if found is None or not defined else (found, False)


def _some(expansion: Expansion, likelihood: Likelihood) -> tuple[Expansion, Likelihood]:
    """At most `_EXAMPLES` examples, evenly spread, and their likelihood with the noise of each.

    If several processes share the examples, a Gaussian likelihood has the noise of the chosen examples of all of them.
    """
    index = expansion.spread(_EXAMPLES)
    if isinstance(likelihood, GaussianLikelihood):
        noise = expansion.root.diagonal(dim1=1, dim2=2).reciprocal()
        return expansion.subset(index), GaussianLikelihood(expansion.team.gathered(noise[index]))
    return expansion.subset(index), likelihood.take(index)
