"""δ and σ by the gradient of the evidence at fixed features, and retraining with them, in turns until both settle."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TypeAlias

from torch import Tensor, nn

from dnn2gp.data import Data, read_data
from dnn2gp.ensemble import write_weights
from dnn2gp.errors import EvidenceWarning, InputError, warn_user
from dnn2gp.likelihoods import Likelihood
from dnn2gp.minimise import train_to_minimum
from dnn2gp.priors import PriorPrecision
from dnn2gp.progress import show_progress, track
from dnn2gp.tune.choice import Choice
from dnn2gp.tuning_result import TuningResult

# A gradient whose step moves no output by more than this many posterior standard deviations is that of a minimum.
_NOTICEABLE = 0.5
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

    The trials are the rounds. Features move with the weights, so that the last one need not have the largest evidence:
    `result.best` is the one that has it, among those at a minimum; `result.gp` its GP and `result.network` its network.
    The network that came in is not changed.
    """
    if not isinstance(network, nn.Module):
        raise InputError(f"network: expected the torch.nn.Module to tune; got {type(network).__name__}.")
    if max_rounds < 1 or not tolerance > 0:
        raise InputError(f"expected max_rounds ≥ 1 and tolerance > 0; got {max_rounds} and {tolerance}.")
    own, training, fit = deepcopy(network), read_data(data), train or train_to_minimum
    choice = Choice.first(own, training, likelihood, prior_precision, per_layer, per_output)
    gap, found = float("inf"), []
    with show_progress(progress):
        for _ in track(range(max_rounds), "tuning by gradient", total=max_rounds):
            fit(own, training, choice.likelihood, choice.of_weights)
            gp = choice.converted(own, training)
            moved = choice.improved(gp)
            found.append((gp, moved.trials[-1]))
            gap, choice = moved.distance(choice), moved
            if gap < tolerance:
                break
    notes = () if gap < tolerance else (f"δ or σ still moved by {gap:.1%} in the last of {max_rounds} rounds.",)
    for note in notes:
        warn_user(f"{note} Allow more (max_rounds=), or a larger tolerance.", EvidenceWarning)
    minima = [pair for pair in found if pair[1].values["step_bound"] <= _NOTICEABLE]
    gp, best = max(minima or found, key=lambda pair: pair[1].evidence)
    write_weights(own, gp.network.weights)
    return TuningResult("gradient", choice.trials, best.settings, best.evidence, not notes, notes, gp=gp, network=own)
