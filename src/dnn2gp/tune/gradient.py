"""Tuning by gradient: maximise the evidence over δ and σ at fixed features, retrain, and repeat until both settle."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace

import torch
from torch import nn

from dnn2gp.evidence.tuning_result import TuningResult
from dnn2gp.likelihoods import Likelihood
from dnn2gp.network.data import Data, read_data
from dnn2gp.support.errors import DivergedError, EvidenceWarning, InputError, warn_user
from dnn2gp.support.numbers import positive_number, whole_number
from dnn2gp.support.progress import show_progress
from dnn2gp.tune.chain import Chain, Round, Train, run_chain
from dnn2gp.tune.ensemble import write_weights
from dnn2gp.tune.fresh import fresh_copy
from dnn2gp.tune.minimise import train_to_minimum
from dnn2gp.tune.prior_choice import PriorChoice
from dnn2gp.tune.ranking import ByCautiousEvidence, Ranking
from dnn2gp.weights.priors import PriorPrecision

# A chain from fresh weights starts at this multiple of the initial δ.
_STRONG = 10.0


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
    rank: Ranking | None = None,
    restarts: int = 1,
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
    rank             what decides between rounds: ByCautiousEvidence(), the default, or ByLeaveOneOut()
    restarts         further chains of rounds, each from fresh weights and ten times the initial δ; the best chain wins
    max_rounds       the largest number of rounds of each chain
    tolerance        the largest change of log δ and log σ between two rounds at convergence

    The trials are the rounds. Features change with the weights, so a round may end with less evidence than the one
    before. If it loses more than one nat, the chain goes back to its best round with half the step size; if it ends
    with less evidence than it had, or where it started, it goes on with a search along log δ (see `chain.py`).
    `result.best` is the round that ranks highest, `result.gp` its GP and `result.network` its network. The given
    network is not changed. A note and an `EvidenceWarning` say if the best δ is one that a chain started with.
    """
    if not isinstance(network, nn.Module):
        raise InputError(f"network: expected the torch.nn.Module to tune; got {type(network).__name__}.")
    rank = ByCautiousEvidence() if rank is None else rank
    if not isinstance(rank, Ranking):
        raise InputError(f"rank: expected ByCautiousEvidence() or ByLeaveOneOut(); got {rank!r}.")
    max_rounds, tolerance = whole_number("max_rounds", max_rounds), positive_number("tolerance", tolerance)
    restarts = whole_number("restarts", restarts, 0)
    own, training = deepcopy(network), read_data(data)
    choice = PriorChoice.first(own, training, likelihood, prior_precision, per_layer, per_output)
    with show_progress(progress):
        chains = list(_chains(own, training, train or train_to_minimum, choice, rank, restarts, max_rounds, tolerance))
    chain = max(chains, key=lambda each: each.best.score)
    best = chain.best
    notes = _notes(chain, tolerance, max_rounds) + _stayed(chain, len(chains), len(chains[-1].trials))
    for note in notes:
        warn_user(note, EvidenceWarning)
    notes += _shortened(best, tolerance) if chain.shortened else ()
    write_weights(own, best.gp.network.weights)
    return TuningResult(
        "gradient",
        chains[-1].trials,
        best.trial.settings,
        best.trial.evidence,
        chain.settled and best.at_minimum,
        notes,
        gp=best.gp,
        network=own,
    )


def _chains(
    network: nn.Module,
    data: Data,
    train: Train,
    first: PriorChoice,
    rank: Ranking,
    restarts: int,
    max_rounds: int,
    tolerance: float,
) -> Iterator[Chain]:
    """The chain from the network itself, and those from fresh weights; each has the trials of those before it."""
    chain = run_chain(deepcopy(network), data, train, first, rank, max_rounds, tolerance)
    yield chain
    strong = replace(first, precision=_STRONG * first.precision)
    for seed in range(restarts):
        start = replace(strong, trials=chain.trials)
        try:
            chain = run_chain(fresh_copy(network, seed), data, train, start, rank, max_rounds, tolerance)
        except DivergedError:  # the first chain did not, and its result stands
            continue
        yield chain


def _notes(chain: Chain, tolerance: float, max_rounds: int) -> tuple[str, ...]:
    """Warnings about the best round and the end of its chain."""
    best = chain.best
    notes = list(best.choice.notes())
    if not best.at_minimum:
        notes.append(
            "The best round did not reach a minimum of its loss: its relative gradient is "
            f"{best.trial.values['relative_gradient']:.0%}. Standardise inputs and targets, or pass your own training "
            "function (train=)."
        )
    if not chain.settled:
        notes.append(
            f"δ or σ still changed by {chain.gap:.1%} in the last of {max_rounds} rounds. Allow more rounds "
            "(max_rounds=) or a larger tolerance (tolerance=)."
        )
    return tuple(notes)


def _stayed(chain: Chain, num_chains: int, num_rounds: int) -> tuple[str, ...]:
    """A note that the best δ is the one that its chain started with."""
    if not chain.stayed:
        return ()
    delta = ", ".join(f"{value:.3g}" for value in chain.start.precision.reshape(-1).tolist())
    return (
        f"The best δ is the one that tuning started with (δ = {delta}): no network that was retrained with another δ "
        f"ranks higher (rounds: {num_rounds}, chains: {num_chains}). Start elsewhere (prior_precision=0.1 or 10), "
        "allow more rounds or restarts (max_rounds=, restarts=), or rank by leave-one-out (rank=ByLeaveOneOut()).",
    )


def _shortened(best: Round, tolerance: float) -> tuple[str, ...]:
    """A note that the best round is not a fixed point, if the steps had to be shortened."""
    asked = best.moved.distance(best.choice)
    if asked < tolerance:
        return ()
    return (
        f"With the features of this network, the evidence would change δ or σ by {asked:.0%}, but networks retrained "
        "with these values have less evidence. The steps were shortened.",
    )
