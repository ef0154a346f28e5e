"""Tuning by gradient: maximise the evidence over δ and σ at fixed features, retrain, and repeat until both settle."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor, nn

from dnn2gp.evidence.tuning_result import Trial, TuningResult
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.minimum import step_matters_little
from dnn2gp.likelihoods import Likelihood
from dnn2gp.network.data import Data, read_data
from dnn2gp.support.errors import DivergedError, EvidenceWarning, InputError, warn_user
from dnn2gp.support.numbers import positive_number, whole_number
from dnn2gp.support.progress import show_progress, track
from dnn2gp.tune.ensemble import write_weights
from dnn2gp.tune.minimise import train_to_minimum
from dnn2gp.tune.prior_choice import PriorChoice
from dnn2gp.weights.priors import PriorPrecision

# A round whose evidence is lower than the best by more than this, in nats, went too far.
_LOST = 1.0
Train: TypeAlias = "Callable[[nn.Module, Data, Likelihood, Tensor], object]"


@torch.inference_mode(False)
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
    """Alternate between retraining a copy of the network and tuning δ (and an open σ) until neither changes.

    likelihood       σ is tuned if it is open, as in GaussianLikelihood(); a given σ is kept
    prior_precision  the initial δ
    train            train(network, data, likelihood, δ of each weight) changes the weights in place, starting from
                     their current values; by default `minimise.train_to_minimum`
    per_layer        one δ per layer; per_output: one σ per output
    tolerance        the largest change of log δ and log σ between two rounds at convergence

    The trials are the rounds. Features change with the weights, so a round may end with less evidence than the one
    before. If it loses more than one nat, tuning restarts from the best round with half the step size. `result.best` is
    the round with the largest evidence (minus what a step would still gain, if it did not reach a minimum),
    `result.gp` its GP and `result.network` its network. The given network is not changed.
    """
    if not isinstance(network, nn.Module):
        raise InputError(f"network: expected the torch.nn.Module to tune; got {type(network).__name__}.")
    max_rounds, tolerance = whole_number("max_rounds", max_rounds), positive_number("tolerance", tolerance)
    own, training = deepcopy(network), read_data(data)
    choice = PriorChoice.first(own, training, likelihood, prior_precision, per_layer, per_output)
    with show_progress(progress):
        found = _alternate(own, training, train or train_to_minimum, choice, max_rounds, tolerance)
    best, settled = found.best, found.gap < tolerance
    notes = _notes(best, found.gap, tolerance, max_rounds)
    for note in notes:
        warn_user(note, EvidenceWarning)
    notes += _shortened(best, tolerance) if found.shortened else ()
    write_weights(own, best.gp.network.weights)
    return TuningResult(
        "gradient",
        found.trials,
        best.trial.settings,
        best.trial.evidence,
        settled and best.at_minimum,
        notes,
        gp=best.gp,
        network=own,
    )


def _alternate(
    network: nn.Module, data: Data, train: Train, choice: PriorChoice, max_rounds: int, tolerance: float
) -> _Rounds:
    """Alternate between retraining in place and tuning; a round that loses too much restarts from the best one."""
    gap, share, best = float("inf"), 1.0, None
    for _ in track(range(max_rounds), "tuning by gradient", total=max_rounds):
        train(network, data, choice.likelihood, choice.of_weights)
        _check_trained(network)
        gp = choice.converted(network, data)
        moved = choice.improved(gp)
        here = _Round(choice, moved, gp)
        best = here if best is None or here.rank > best.rank else best
        if here.rank < best.rank - _LOST:
            write_weights(network, best.gp.network.weights)
            here, share = best, share / 2
        choice = replace(here.choice.toward(here.moved, share), trials=moved.trials)
        gap = choice.distance(here.choice)
        if gap < tolerance:
            break
    assert best is not None
    return _Rounds(best, choice.trials, gap, share < 1)


def _check_trained(network: nn.Module) -> None:
    for name, weight in network.named_parameters():
        if not weight.isfinite().all():
            raise DivergedError(
                f"train: expected finite weights after training; got NaN or infinity in {name!r}. Use a smaller "
                "learning rate in the training function; the given network is unchanged."
            )


def _notes(best: _Round, gap: float, tolerance: float, max_rounds: int) -> tuple[str, ...]:
    """Warnings about the best round."""
    notes = list(best.choice.notes())
    if not best.at_minimum:
        notes.append(
            "The best round did not reach a minimum of its loss: its relative gradient is "
            f"{best.trial.values['relative_gradient']:.0%}. Standardise inputs and targets, or pass your own training "
            "function (train=)."
        )
    if gap >= tolerance:
        notes.append(
            f"δ or σ still changed by {gap:.1%} in the last of {max_rounds} rounds. Allow more rounds (max_rounds=) or "
            "a larger tolerance (tolerance=)."
        )
    return tuple(notes)


def _shortened(best: _Round, tolerance: float) -> tuple[str, ...]:
    """A note that the best round is not a fixed point, if the steps had to be shortened."""
    asked = best.moved.distance(best.choice)
    if asked < tolerance:
        return ()
    return (
        f"With the features of this network, the evidence would change δ or σ by {asked:.0%}, but networks retrained "
        "with these values have less evidence. The steps were shortened.",
    )


@dataclass(eq=False)
class _Round:
    """One round: δ and σ, the values with the largest evidence at the resulting features, and the GP."""

    choice: PriorChoice
    moved: PriorChoice
    gp: GaussianProcess

    @property
    def trial(self) -> Trial:
        """Its entry in the result."""
        return self.moved.trials[-1]

    @property
    def at_minimum(self) -> bool:
        """Whether another step would not move any output noticeably."""
        return step_matters_little(self.trial.values["step_bound"])

    @cached_property
    def rank(self) -> float:
        """The Laplace evidence at the weights minus the gain of one more step, so that only minima can win."""
        evidence = self.gp.evidence()
        return evidence.laplace - evidence.correction


@dataclass(frozen=True, eq=False)
class _Rounds:
    """All rounds of a tuning run."""

    best: _Round
    trials: tuple[Trial, ...]
    gap: float
    """The last change of log δ or log σ."""
    shortened: bool
    """Whether the steps had to be shortened."""
