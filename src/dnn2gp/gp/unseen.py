"""What a GP and its network predict for training examples: as they are, and as if each had not been seen.

Without example i, the linearised network has f₋ = f_θ + V₋ r at its input (`dnn2gp.inference.leave_one_out`), where f_θ
are the outputs at the mode θ. A GP at the mode predicts f₋. A function f that is not at the mode, that of the network
or of a GP around it, was not obtained by minimising this loss, so the effect of leaving out an example is estimated:

    classification     ρ f₋, with ρ the ratio of the root mean squares of f and f_θ: logits on another scale, as in
                       the choice of the calibration (`dnn2gp.gp.automatic`)
    Gaussian           f + V₋ r − c (y − f_θ), with 0 ≤ c ≤ 1 the least-squares coefficient of f − f_θ on y − f_θ: what
                       f has memorised of the targets beyond the mode, it does not know without them
    other likelihoods  f + V₋ r
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

from jaxtyping import Float
from torch import Tensor

from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.minimum import at_minimum
from dnn2gp.gp.moved import Movement, network_view, spread
from dnn2gp.gp.scores import Forecast
from dnn2gp.inference import Latent, LeftOut, NetworkOutput, left_out, training_latent
from dnn2gp.likelihoods import CategoricalLikelihood, ClassificationLikelihood, GaussianLikelihood, Likelihood
from dnn2gp.support.errors import IllConditionedError, InputError
from dnn2gp.support.processes import Team
from dnn2gp.weights.expansion import Expansion


@final
@dataclass(frozen=True, eq=False)
class Seen:
    """Network and GP on some training examples, from one pass over their inputs.

    If several processes share the examples, `sites`, `latent` and `network` are those of this process; the forecasts,
    targets and movement are those of all processes.
    """

    gp: GaussianProcess
    sites: Expansion
    """Those of these examples."""
    likelihood: Likelihood
    """If it is Gaussian, with the noise of each example of all processes."""
    latent: Latent
    network: Float[Tensor, "n K"]
    """f_w, in float64."""

    @staticmethod
    def of(gp: GaussianProcess, count: int) -> Seen:
        """On at most `count` examples, evenly spread over the data."""
        expansion = gp.model.expansion
        index, few = spread(expansion, count)
        likelihood = gp.likelihood
        if isinstance(likelihood, GaussianLikelihood) and expansion.quadratic:
            noise = few.root.double().diagonal(dim1=1, dim2=2).reciprocal()
            likelihood = GaussianLikelihood(few.team.gathered(noise))
        else:
            likelihood = likelihood.take(index)
        features, inputs = network_view(few)
        latent = (training_latent(gp.inference, few) if few.columns else gp.inference.latent(features, inputs)).finite()
        centre = gp.model.centre
        own = centre is None or not bool(centre.any())
        network = latent.outputs if own else features.outputs(inputs)
        return Seen(gp, few, likelihood, latent, network.double())

    @property
    def mean(self) -> Float[Tensor, "n K"]:
        """E f of the GP, before its temperature, in float64."""
        return self.latent.outputs.double() + self.latent.shift.double()

    @property
    def team(self) -> Team:
        """The processes that share the examples."""
        return self.sites.team

    @cached_property
    def targets(self) -> Tensor | None:
        """y of the examples, if they are known."""
        return None if self.sites.targets is None else self.team.gathered(self.sites.targets)

    @cached_property
    def movement(self) -> Movement:
        """How far the mean of the GP is from the network."""
        return Movement.of(self.latent.gathered(self.team), self.team.gathered(self.network), self.likelihood)

    def forecasts(self) -> tuple[Forecast, Forecast]:
        """Of the network and of the GP, with the examples seen."""
        return self._of_network(self.network), self._of_gp(self.mean, self.latent.covariance)

    def _of_network(self, f: Float[Tensor, "n K"]) -> Forecast:
        return Forecast(self.likelihood, self.team.gathered(f))

    def _of_gp(self, f: Float[Tensor, "n K"], covariance: Float[Tensor, "n C C"]) -> Forecast:
        mean, covariance, split = self.team.gathered(f), self.team.gathered(covariance), self.latent.split
        split = None if split is None else split.each(self.team.gathered)
        return Forecast(self.likelihood, mean, covariance, self.gp.calibration, split)

    def left_out(self) -> tuple[Forecast, Forecast] | str:
        """Of the network and of the GP, without each example; or why they are not available."""
        if self._needs_minimum() and not self._at_minimum():
            return (
                "the weights are not at a minimum, and r and Λ are those at the weights, where leave-one-out is not "
                "valid"
            )
        mode = self._mode()
        base = mode if self.sites.moved is not None else self.network
        found = self._found(replace(self.latent, outputs=base, shift=mode - base))
        if isinstance(found, str):
            return found
        around = isinstance(self.gp.centre, NetworkOutput)
        mean = self._without(self.mean, mode, found) if around else self.mean + found.shift
        return self._of_network(self._without(self.network, mode, found)), self._of_gp(mean, found.covariance)

    def _found(self, latent: Latent) -> LeftOut | str:
        """Leave-one-out, or why it is not available; the same in all processes."""
        lost = "some examples determine their own output almost alone, so what remains is lost to rounding"
        undefined = f"leave-one-out is not defined for every {self.gp.inference.description}"
        found, why = None, 0.0
        try:
            found = left_out(self.sites, latent, self.gp.inference)
        except IllConditionedError:
            why = 1.0
        except InputError:
            why = 2.0
        why = self.team.largest(why)
        return (lost if why == 1 else undefined) if found is None or why else found

    def _mode(self) -> Float[Tensor, "n K"]:
        """f at the mode of the linearised network, or where the sites are if that is not known."""
        expansion, centre = self.gp.model.expansion, self.gp.model.centre
        if centre is None:
            return self.mean
        if expansion.moved is not None:
            target = expansion.moved
        elif expansion.quadratic and self.gp.inference.exact:
            target = -self.gp.inference.least_squares[0]
        else:
            return self.mean
        gap = target - centre
        if not bool(gap.any()):
            return self.mean
        features = self.sites.features
        pushed = features.jvp(self.sites.inputs, gap.to(features.anchor.dtype)[:, None])[..., 0]
        return self.mean + pushed.double()

    def _without(self, f: Float[Tensor, "n K"], mode: Float[Tensor, "n K"], found: LeftOut) -> Float[Tensor, "n K"]:
        """f without each example, where f is not at the mode."""
        if isinstance(self.likelihood, GaussianLikelihood):
            return f - self._memorised(f, mode) + found.shift
        size = self._size(mode)
        if not isinstance(self.likelihood, ClassificationLikelihood) or not bool(size > 0):
            return f + found.shift
        return self._size(f) / size * (mode + found.shift)

    def _memorised(self, f: Float[Tensor, "n K"], mode: Float[Tensor, "n K"]) -> Float[Tensor, "n K"]:
        """How much further than the mode a regression f has gone towards each target."""
        targets = self.sites.targets
        if targets is None:
            return f.new_zeros(f.shape)
        residual = targets.double() - mode
        size = self.team.sum(residual.square().sum())
        if not bool(size > 0):
            return f.new_zeros(f.shape)
        share = self.team.sum(((f - mode) * residual).sum()) / size
        return share.clamp(0.0, 1.0) * residual

    def _size(self, f: Float[Tensor, "n K"]) -> Float[Tensor, ""]:
        """The root mean square of the outputs, without the constant that softmax ignores."""
        f = f - f.mean(1, keepdim=True) if isinstance(self.likelihood, CategoricalLikelihood) else f
        return (self.team.sum(f.square().sum()) / self.team.total(f.numel())).sqrt()

    def _needs_minimum(self) -> bool:
        """Whether the sites are those at the weights of the network, and no exact step leads to the mode."""
        expansion = self.gp.model.expansion
        return expansion.moved is None and not (expansion.quadratic and self.gp.inference.exact)

    def _at_minimum(self) -> bool:
        posterior = self.gp.inference
        return at_minimum(posterior.model.relative_gradient(), posterior.step_bound(), exact=posterior.exact)
