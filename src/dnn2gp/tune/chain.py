"""One chain of tuning by gradient: rounds of retraining and tuning from one start, and where they lead.

At fixed features, the δ and σ with the largest evidence are known at once. But features and Λ change with the weights,
and the evidence of the *retrained* network may fall where that of the fixed features rises: in networks with more
weights than data, it often falls from the first round on. Where it does, or where the chain has not left its start, it
goes on with a search along log δ, in which every step is a training run and only steps that rank higher are kept.

In a regression the minimum depends on δσ² alone, so that after each step δ and σ² move along c → (δ/c, cσ²) without
retraining, to the largest evidence:    c = (‖(y − f)/σ‖² + wᵀ diag(δ) w) / (N K).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import copysign, log
from typing import TypeAlias

from torch import Tensor, nn

from dnn2gp.evidence.tuning_result import Trial
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.minimum import step_matters_little
from dnn2gp.likelihoods import Likelihood
from dnn2gp.network.data import Data
from dnn2gp.support.errors import DivergedError
from dnn2gp.support.progress import track
from dnn2gp.tune.ensemble import write_weights
from dnn2gp.tune.line_search import LineSearch
from dnn2gp.tune.prior_choice import PriorChoice
from dnn2gp.tune.ranking import ByCautiousEvidence, Ranking

Train: TypeAlias = "Callable[[nn.Module, Data, Likelihood, Tensor], object]"
# A round that ranks lower than the best by more than this, in nats, went too far.
_LOST = 1.0
# The share of its step at which the alternation gives up.
_GIVE_UP = 0.25
# If the last round of the alternation ranks lower than the best by more than this, in nats, log δ is searched. So it is
# if the best round is at the initial δ, or if rounds are ranked by anything but the evidence that alternating raises.
_SLIPPED = 0.1
# The first step of that search in log δ, and the length at which it ends if the tolerance is not larger.
_LONG, _SHORT = log(3.0), 0.05


@dataclass(eq=False)
class Round:
    """One round: δ and σ, the GP of the network that was trained with them, and its score."""

    choice: PriorChoice
    gp: GaussianProcess
    score: float

    @cached_property
    def moved(self) -> PriorChoice:
        """The δ and σ with the largest evidence at the features of this round."""
        return self.choice.improved(self.gp)

    @property
    def trial(self) -> Trial:
        """Its entry in the result."""
        return self.choice.trials[-1]

    @property
    def at_minimum(self) -> bool:
        """Whether another step would not move any output noticeably."""
        return step_matters_little(self.trial.values["step_bound"])


@dataclass(frozen=True, eq=False)
class Chain:
    """All rounds from one start."""

    start: PriorChoice
    best: Round
    trials: tuple[Trial, ...]
    gap: float
    """The last change of log δ or log σ, or the last step of the search."""
    shortened: bool
    """Whether the steps of the alternation had to be shortened."""
    settled: bool

    @property
    def stayed(self) -> bool:
        """Whether the best δ is the one that the chain started with."""
        return self.best.choice.same_precision(self.start)


def run_chain(
    network: nn.Module,
    data: Data,
    train: Train,
    start: PriorChoice,
    ranking: Ranking,
    max_rounds: int,
    tolerance: float,
) -> Chain:
    """Alternate between retraining the network in place and tuning; search along log δ where that ranks lower."""
    run = _Run(network, data, train, ranking, start.trials)
    rounds = iter(track(range(max_rounds), "tuning by gradient", total=max_rounds))
    last, gap, shortened = run.alternate(start, rounds, tolerance)
    best = run.best
    assert best is not None
    settled, stayed = gap < tolerance, best.choice.same_precision(start)
    if stayed or best.score - last.score > _SLIPPED or not isinstance(ranking, ByCautiousEvidence):
        shortest = max(tolerance, _SHORT)
        gap = run.search(rounds, shortest, last)
        settled = gap < shortest
    assert run.best is not None
    return Chain(start, run.best, run.trials, gap, shortened, settled)


class _Run:
    """A network that is trained in place, with its best round so far."""

    def __init__(
        self, network: nn.Module, data: Data, train: Train, ranking: Ranking, trials: tuple[Trial, ...]
    ) -> None:
        self.network, self.data, self.train, self.ranking = network, data, train, ranking
        self.trials = trials
        self.best: Round | None = None

    def alternate(self, choice: PriorChoice, rounds: Iterator[int], tolerance: float) -> tuple[Round, float, bool]:
        """Rounds at the best δ and σ of the features before; one that loses too much restarts from the best round.

        Returns the last round, the last change of log δ or log σ, and whether steps were shortened.
        """
        gap, share, last = float("inf"), 1.0, None
        for _ in rounds:
            last = here = self._round(choice)
            best = self._best(here)
            if here.score < best.score - _LOST:
                self._go_back()
                here, share = best, share / 2
                if share < _GIVE_UP:
                    break
            choice = here.choice.toward(here.moved, share)
            gap = choice.distance(here.choice)
            if gap < tolerance:
                break
        assert last is not None
        return last, gap, share < 1

    def search(self, rounds: Iterator[int], shortest: float, last: Round) -> float:
        """Search along log δ from the best round, first away from the last one; the length of the next step."""
        best = self.best
        assert best is not None
        away = (best.choice.precision.log() - last.choice.precision.log()).mean().item()
        line = LineSearch(_LONG, copysign(1.0, away) if away else -1.0)
        while line.length >= shortest and next(rounds, None) is not None:
            best = self.best
            assert best is not None
            self._go_back()
            here = self._round(best.choice.shifted(line.step), rescale=True)
            line.learn(here.score > best.score)
            self._best(here)
        return line.length

    def _round(self, choice: PriorChoice, *, rescale: bool = False) -> Round:
        """Train with this choice, and convert; with `rescale`, move an open σ along its minimum afterwards."""
        self.train(self.network, self.data, choice.likelihood, choice.of_weights)
        _check_trained(self.network)
        gp = choice.converted(self.network, self.data)
        if rescale and choice.noise:
            choice = choice.along_minimum(gp)
            gp = choice.converted(self.network, self.data)
        score = self.ranking.score(gp)
        choice = replace(choice, trials=self.trials).recorded(gp, {self.ranking.name: score})
        self.trials = choice.trials
        return Round(choice, gp, score)

    def _best(self, here: Round) -> Round:
        """The best round, which may be this one."""
        self.best = here if self.best is None or here.score > self.best.score else self.best
        return self.best

    def _go_back(self) -> None:
        """To the weights of the best round."""
        assert self.best is not None
        write_weights(self.network, self.best.gp.network.weights)


def _check_trained(network: nn.Module) -> None:
    for name, weight in network.named_parameters():
        if not weight.isfinite().all():
            raise DivergedError(
                f"train: expected finite weights after training; got NaN or infinity in {name!r}. Use a smaller "
                "learning rate in the training function; the given network is unchanged."
            )
