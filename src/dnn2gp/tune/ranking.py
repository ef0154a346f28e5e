"""What decides between two rounds of `tune.gradient`: the evidence, or leave-one-out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.leave_one_out import leave_one_out
from dnn2gp.gp.means import moved_to_mode
from dnn2gp.inference.calibration import NONE


class Ranking(ABC):
    """A score of a trained network with its δ and σ, in nats of the whole training set; larger is better."""

    name: ClassVar[str]
    """The score among the values of a trial."""

    @abstractmethod
    def score(self, gp: GaussianProcess) -> float:
        """The score of an uncalibrated GP whose sites are at the weights of its network."""


@final
@dataclass(frozen=True)
class ByCautiousEvidence(Ranking):
    """log p(D|w) + log p(w) + P/2 log 2π − ½ log |Σ̃⁻¹| − ½ gᵀΣ̃g: Laplace's evidence, minus what a step would gain.

    At a minimum it is the evidence. Elsewhere the gain is subtracted rather than added, so that weights away from a
    minimum cannot win for that reason.
    """

    name: ClassVar[str] = "cautious_evidence"

    def score(self, gp: GaussianProcess) -> float:
        evidence = gp.evidence()
        gain = evidence.correction if gp.inference.solves else 0.5 * gp.inference.step_bound() ** 2
        return evidence.laplace - gain


@final
@dataclass(frozen=True)
class ByLeaveOneOut(Ranking):
    """Σᵢ log p(yᵢ | D without example i) of the linearised network at its mode.

    It asks how well the examples are predicted rather than how probable the data are. The features stay fixed, so it
    does not see what they have learned from the example that is left out.
    """

    name: ClassVar[str] = "leave_one_out"

    def score(self, gp: GaussianProcess) -> float:
        mode = moved_to_mode(gp.inference, gp.likelihood)
        return leave_one_out(mode, gp.likelihood, NONE).log_prob.double().sum().item()
