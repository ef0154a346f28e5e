"""Is this GP better or worse than its network? Measurements on the user's own data, in plain units, with advice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from dnn2gp.gp.diagnosis_details import Details
from dnn2gp.gp.finding import BAD, CAUTION, GOOD, NOTE, Finding, worst
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.judgement import Judgement
from dnn2gp.gp.minimum import LARGE_STEP
from dnn2gp.gp.moved import units_of
from dnn2gp.gp.scores import Scores, constant_nll
from dnn2gp.gp.unseen import Seen
from dnn2gp.gp.words import calibration_words, matters, percent, prior_words, share_words
from dnn2gp.inference import GaussNewtonStep, Mean, NetworkOutput
from dnn2gp.inference.calibration import Calibration
from dnn2gp.support.errors import InputError
from dnn2gp.support.numbers import whole_number

# Training examples on which everything but the details is measured, evenly spread over the data.
_EXAMPLES = 2000
# An example whose Λ has a smaller trace says nothing about the weights.
_UNINFORMATIVE = 1e-6


@final
@dataclass(frozen=True)
class Diagnosis:
    """The numbers behind the verdict, and the verdict in words (`str`). None stands for what is not available."""

    num_examples: int
    """Training examples on which the numbers were measured: all, or 2000 that are evenly spread over the data."""
    network: Scores | None
    """Of the network, on its training data."""
    gp: Scores | None
    """Of the GP, on the training data of the network."""
    network_left_out: Scores | None
    """Of the network, estimated for unseen data: each example left out of the linearised network, at the scale of the
    network's own outputs (`dnn2gp.gp.unseen`)."""
    left_out: Scores | None
    """Of the GP, with each example left out."""
    gain_error: float | None
    """The standard error of `gain`."""
    constant_nll: float | None
    """The NLL of a prediction that ignores the inputs: class frequencies, or one Gaussian for all targets."""
    unavailable: str
    """Why scores are missing; empty if none are."""
    units: str
    """Of the outputs f: logits, log rates, units of the targets or units of the outputs."""
    deviation: float
    """The standard deviation of an output of the calibrated GP on training inputs, root mean square, in `units`."""
    moved: float
    """E f − f_w on training inputs before a temperature is applied, root mean square, in `units`."""
    uninformative: float
    """The share of examples with Λ near 0, which do not constrain the weights: the network is certain about them."""
    share: float
    """The share of the network's weights that have a posterior; the others are frozen, or not in `subset`."""
    posterior: str
    """The structure and the space, e.g. "dense posterior in function space"."""
    prior_precision: tuple[float, float]
    """The smallest and the largest δ."""
    tuned: bool
    """Whether the evidence chose δ."""
    mean: Mean
    """What predictions are centred at."""
    calibration: Calibration
    """a, τ and s."""
    details: Details | None = None
    """With `diagnose(gp, details=True)`."""

    @property
    def gain(self) -> float | None:
        """How much smaller the NLL of the GP is than that of the network for unseen examples, in nats per example."""
        if self.left_out is None or self.network_left_out is None:
            return None
        return self.network_left_out.nll - self.left_out.nll

    @property
    def findings(self) -> list[Finding]:
        """What was found, each with a grade."""
        found = [*self._judgement.findings, self._size(), self._used()]
        if self.uninformative > 0.5:
            found.append(self._saturation())
        return found if self.details is None else [*found, *self.details.findings]

    @property
    def verdict(self) -> str:
        """Whether to use the GP rather than the network: good, caution or bad, the worst grade of all findings."""
        return worst(self.findings)

    @property
    def trustworthy(self) -> bool:
        """Whether no finding is bad."""
        return self.verdict != BAD

    @property
    def advice(self) -> str:
        """What to do next, in one sentence."""
        verdict = self.verdict
        if verdict != GOOD:
            return next(each.advice for each in self.findings if each.grade == verdict)
        far = self.moved > LARGE_STEP * self.deviation and self.calibration.scale > 0
        train = "; its mean is far from the network, and longer training on all data at once would bring them together"
        return f"Use gp.predict(inputs){self._answer}{train if far else ''}."

    def __str__(self) -> str:
        lines = [self._judgement.sentence(self.verdict), *(str(each) for each in self.findings)]
        return "\n".join([*lines, f"Next: {self.advice}"])

    @property
    def _judgement(self) -> Judgement:
        return Judgement(
            self.num_examples,
            self.network,
            self.gp,
            self.network_left_out,
            self.left_out,
            self.gain,
            self.gain_error,
            self.constant_nll,
            self.unavailable,
            self.mean,
            self.calibration,
        )

    @property
    def _answer(self) -> str:
        if self.units == "logits":
            return ".probabilities"
        return ".interval(0.9)" if self.units in ("log rates", "units of the targets") else ""

    def _size(self) -> Finding:
        temperature = self.calibration.temperature
        divided = f", before all logits are divided by {temperature:.3g}" if matters(temperature) else ""
        reading = (
            f"On the training data, an output typically has a standard deviation of {self.deviation:.2g} {self.units}; "
            f"the mean of the GP differs from the network by {self.moved:.2g} {self.units} (root mean square){divided}."
        )
        return Finding("size", NOTE, reading)

    def _used(self) -> Finding:
        weights = share_words(self.share)
        reading = (
            f"Used: {self.posterior}{weights}, {prior_words(self.prior_precision, tuned=self.tuned)}, mean: "
            f"{self.mean.name}, {calibration_words(self.calibration)}."
        )
        return Finding("used", NOTE, reading)

    def _saturation(self) -> Finding:
        reading = (
            f"The network is saturated: it is certain about {percent(self.uninformative)} of the examples (Λ near 0), "
            "which therefore do not constrain the weights, and the posterior stays near the prior."
        )
        advice = "Raise δ (more weight decay) and retrain"
        at_weights = self.mean in (GaussNewtonStep(), NetworkOutput())
        advice += ", or leave mean= out, so that Λ is evaluated at the mode." if at_weights else "."
        return Finding("saturation", CAUTION, reading, advice)


def diagnose(
    gp: GaussianProcess,
    details: bool = False,
    *,
    num_probes: int = 10,
    subset: int = 50,
    generator: torch.Generator | None = None,
) -> Diagnosis:
    """Measure whether predictions with this GP are better or worse than those of its network.

    One pass over at most 2000 training examples, about as long as `gp.predict` takes for them.

    Args:
        gp: The GP of a trained network.
        details: Whether to also measure the gradient, the curvature that the GGN omits, and the agreement of weight
            space and function space, which takes longer.
        num_probes: Random directions in which the Hessian is compared with the GGN, for the details.
        subset: The largest number of examples on which the two spaces are compared, for the details.
        generator: Draws the probes; by default, they are the same in every call.
    """
    if not isinstance(gp, GaussianProcess):
        raise InputError(f"gp: expected a GaussianProcess, as convert returns it; got {type(gp).__name__}.")
    if not isinstance(details, bool):
        raise InputError(f"details: expected True or False; got {details!r}.")
    num_probes, subset = whole_number("num_probes", num_probes), whole_number("subset", subset)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InputError(f"generator: expected a torch.Generator or None; got {type(generator).__name__}.")
    if gp.model.of_step:
        raise InputError(
            "diagnose: expected the GP of a trained network (convert); got that of a training step, whose weights "
            "are not at a minimum."
        )
    if details and gp.team.size > 1:
        raise InputError(
            "details: expected False, because several processes share the examples, and function space needs all of "
            "them in one process. Save the GP, load it in a single process, and diagnose that one."
        )
    generator = generator or torch.Generator(gp.features.anchor.device).manual_seed(0)
    with gp.team.together():
        return _diagnosis(gp, Details.of(gp, num_probes, subset, generator) if details else None)


def _diagnosis(gp: GaussianProcess, details: Details | None) -> Diagnosis:
    seen = Seen.of(gp, _EXAMPLES)
    measured = _Measured.of(seen)
    calibration, movement = gp.calibration, seen.movement
    expansion = gp.model.expansion
    traces = expansion.root.double().square().sum((1, 2))
    uninformative = gp.team.total((traces < _UNINFORMATIVE).sum().item()) / expansion.num_examples
    delta = gp.prior.precision.diagonal()
    return Diagnosis(
        num_examples=int(gp.team.total(len(seen.network))),
        network=measured.network,
        gp=measured.gp,
        network_left_out=measured.network_left_out,
        left_out=measured.left_out,
        gain_error=measured.gain_error,
        constant_nll=measured.constant_nll,
        unavailable=measured.unavailable,
        units=units_of(gp.likelihood),
        deviation=movement.deviation * calibration.scale**0.5 / calibration.temperature,
        moved=movement.outputs,
        uninformative=uninformative,
        share=gp.features.network.share,
        posterior=gp.inference.description,
        prior_precision=(delta.min().item(), delta.max().item()),
        tuned=gp.tuning is not None,
        mean=gp.centre,
        calibration=calibration,
        details=details,
    )


@final
@dataclass(frozen=True)
class _Measured:
    """The scores."""

    network: Scores | None = None
    gp: Scores | None = None
    network_left_out: Scores | None = None
    left_out: Scores | None = None
    gain_error: float | None = None
    constant_nll: float | None = None
    unavailable: str = ""

    @staticmethod
    def of(seen: Seen) -> _Measured:
        """As far as the targets are known, and leave-one-out is valid."""
        targets = seen.targets
        if targets is None:
            return _Measured(
                unavailable="this GP does not hold the targets (it has gradient features, or an earlier release wrote "
                "its file)"
            )
        network, own = (each.scored(targets)[0] for each in seen.forecasts())
        constant = constant_nll(seen.likelihood, targets, seen.network.shape[1])
        found = seen.left_out()
        if isinstance(found, str):
            return _Measured(network, own, constant_nll=constant, unavailable=found)
        (network_left_out, before), (left_out, after) = (each.scored(targets) for each in found)
        error = (after - before).std(correction=0) / len(targets) ** 0.5
        return _Measured(network, own, network_left_out, left_out, error.item(), constant)
