"""δ and σ by the gradient of the evidence at fixed features, and retraining with them, in turns until both settle."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from torch import Tensor, nn

from dnn2gp.evidence.tuning_result import Trial, TuningResult
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.minimum import step_matters_little
from dnn2gp.likelihoods import Likelihood
from dnn2gp.network.data import Data, read_data
from dnn2gp.support.errors import EvidenceWarning, InputError, warn_user
from dnn2gp.support.progress import show_progress, track
from dnn2gp.tune.ensemble import write_weights
from dnn2gp.tune.minimise import train_to_minimum
from dnn2gp.tune.prior_choice import PriorChoice
from dnn2gp.weights.priors import PriorPrecision

# A round that ends with this much less evidence than the best one, in nats, went too far.
_LOST = 1.0
Train: TypeAlias = "Callable[[nn.Module, Data, Likelihood, Tensor], object]"


def gradient(
    network: nn.Module,
    data: object,
    likelihood: Likelihood,
    prior_precision: PriorPrecision = 1.0,
    *,
    train: Train | None = None,
    per_layer: bool = False,
    per_output: bool = False,
    max_rounds: int = 30,
    tolerance: float = 0.01,
    progress: bool = False,
) -> TuningResult:
    """Retrain a copy of the network and tune δ (and an open σ) by the evidence, in turns, until neither moves.

    likelihood       GaussianLikelihood() has its σ tuned; one with a σ keeps it
    prior_precision  δ to begin with
    train            train(network, data, likelihood, δ of each weight) changes the weights in place, from where they
                     are; by default `minimise.train_to_minimum`
    per_layer        one δ for each layer; per_output: one σ for each output
    tolerance        of log δ and log σ between two rounds

    The trials are the rounds. Features move with the weights, so that a round may end with less evidence than the one
    before: if it is more than a nat less, the best round is gone on from, with steps half as long from then on.
    `result.best` is the round of the largest evidence (less what a step would still gain, where it did not come to a
    minimum), `result.gp` its GP and `result.network` its network. The network that came in is not changed.
    """
    if not isinstance(network, nn.Module):
        raise InputError(f"network: expected the torch.nn.Module to tune; got {type(network).__name__}.")
    if max_rounds < 1 or not tolerance > 0:
        raise InputError(f"expected max_rounds ≥ 1 and tolerance > 0; got {max_rounds} and {tolerance}.")
    own, training, fit = deepcopy(network), read_data(data), train or train_to_minimum
    choice = PriorChoice.first(own, training, likelihood, prior_precision, per_layer, per_output)
    gap, share, best = float("inf"), 1.0, None
    with show_progress(progress):
        for _ in track(range(max_rounds), "tuning by gradient", total=max_rounds):
            fit(own, training, choice.likelihood, choice.of_weights)
            gp = choice.converted(own, training)
            moved = choice.improved(gp)
            here, trials = _Round(choice, moved, gp), moved.trials
            best = here if best is None or here.rank > best.rank else best
            if here.rank < best.rank - _LOST:
                write_weights(own, best.gp.network.weights)
                here, share = best, share / 2
            choice = replace(here.choice.toward(here.moved, share), trials=trials)
            gap = choice.distance(here.choice)
            if gap < tolerance:
                break
    assert best is not None
    notes = _notes(best, gap, tolerance, max_rounds)
    for note in notes:
        warn_user(note, EvidenceWarning)
    notes += _shortened(best, tolerance) if share < 1 else ()
    write_weights(own, best.gp.network.weights)
    settled = gap < tolerance and best.at_minimum
    return TuningResult(
        "gradient",
        choice.trials,
        best.trial.settings,
        best.trial.evidence,
        settled,
        notes,
        gp=best.gp,
        network=own,
    )


def _notes(best: _Round, gap: float, tolerance: float, max_rounds: int) -> tuple[str, ...]:
    """What is to be said about the best round, in words."""
    notes = list(best.choice.notes())
    if not best.at_minimum:
        notes.append(
            "No round of large evidence came to a minimum of its loss: the gradient of the best is "
            f"{best.trial.values['relative_gradient']:.0%} of its parts (data and prior). Standardise inputs and "
            "targets, or give a training of your own (train=)."
        )
    if gap >= tolerance:
        notes.append(
            f"δ or σ still moved by {gap:.1%} in the last of {max_rounds} rounds. Allow more (max_rounds=), or a "
            "larger tolerance."
        )
    return tuple(notes)


def _shortened(best: _Round, tolerance: float) -> tuple[str, ...]:
    """That the best round is no fixed point, where steps had to become shorter."""
    asked = best.moved.distance(best.choice)
    if asked < tolerance:
        return ()
    return (
        f"At the features of this network the evidence asks for a δ or σ that is another by {asked:.0%}, but networks "
        "that were trained so have less evidence: the steps were shortened.",
    )


@dataclass(eq=False)
class _Round:
    """A choice, that of the largest evidence at the features it led to, and its GP."""

    choice: PriorChoice
    moved: PriorChoice
    gp: GaussianProcess

    @property
    def trial(self) -> Trial:
        """What is noted of it."""
        return self.moved.trials[-1]

    @property
    def at_minimum(self) -> bool:
        """Whether no output would move noticeably by another step."""
        return step_matters_little(self.trial.values["step_bound"])

    @cached_property
    def rank(self) -> float:
        """Laplace's evidence at the weights, less what a Gauss-Newton step would still gain: minima are not outdone."""
        evidence = self.gp.evidence()
        return evidence.laplace - evidence.correction
