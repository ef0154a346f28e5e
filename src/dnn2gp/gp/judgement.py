"""The verdict on a GP: what its scores mean, compared with those of its network. All thresholds are in this file."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import final

from dnn2gp.gp.finding import BAD, CAUTION, GOOD, Finding
from dnn2gp.gp.scores import LEVEL, Scores
from dnn2gp.gp.words import percent, scores_words
from dnn2gp.inference import GaussNewtonStep, Mean
from dnn2gp.inference.calibration import Calibration

_FEWEST = 10
"""With fewer examples, no conclusion is drawn."""
_EVEN = 0.02
"""NLLs that differ by less (in nats per example), or by less than two standard errors, count as equal."""
_MUCH = 0.1
"""A GP whose NLL is larger by more than this is worse than the network, or than a guess."""
_FAR = 0.7
"""On training data alone, a GP whose NLL is larger by more than this is worse than the network."""
_LOST = 0.02
"""How much lower the training accuracy of a GP may be than that of the network."""
_CONFIDENCE, _COVERAGE = 0.1, 0.05
"""How far confidence may be from accuracy, and coverage from 90 %, besides two standard errors."""
_DOUBT = 0.2
"""How far confidence may be below accuracy on the training data."""

_BETTER, _AS_GOOD, _SLIGHTLY_WORSE, _WORSE, _UNKNOWN = "better", "as good", "slightly worse", "worse", "unknown"
_COMPARE = "Compare gp.predict(x).log_prob(y) with the network on data that it was not trained on."


@final
@dataclass(frozen=True)
class Judgement:
    """Findings about scores; see `Diagnosis` for the fields."""

    num_examples: int
    network: Scores | None
    gp: Scores | None
    network_left_out: Scores | None
    left_out: Scores | None
    gain: float | None
    gain_error: float | None
    constant_nll: float | None
    unavailable: str
    mean: Mean
    calibration: Calibration

    @property
    def comparison(self) -> str:
        """The GP compared with the network on unseen data: better, as good, slightly worse, worse, or unknown."""
        if self.gain is None or self.gain_error is None or self.num_examples < _FEWEST:
            return _UNKNOWN
        margin = max(_EVEN, 2 * self.gain_error)
        if self.gain >= -margin:
            return _BETTER if self.gain > margin else _AS_GOOD
        return _SLIGHTLY_WORSE if self.gain >= -_MUCH else _WORSE

    @property
    def findings(self) -> list[Finding]:
        """On the training data, with each example left out, and the calibration."""
        return [self._seen(), self._unseen(), *self._calibration()]

    def sentence(self, verdict: str) -> str:
        """The verdict in a sentence."""
        comparison, useless = self.comparison, self._useless
        if verdict == BAD:
            if useless:
                return "Bad: this GP predicts worse than a guess that ignores the inputs. Do not use it as it is."
            if comparison == _WORSE or self._damaged:
                return "Bad: this GP predicts worse than the network. Do not use it as it is."
            return "Bad: the numbers of this GP are not reliable. Do not use it as it is."
        words = {
            _BETTER: "this GP predicts better than the network.",
            _AS_GOOD: "this GP predicts as well as the network.",
            _SLIGHTLY_WORSE: "this GP predicts slightly worse than the network.",
            _UNKNOWN: "the training data cannot tell whether this GP predicts better or worse than the network.",
            _WORSE: "",
        }[comparison]
        return f"{'Good' if verdict == GOOD else 'Use with care'}: {words}"

    @property
    def _damaged(self) -> bool:
        """Whether the GP fits the training data much worse than the network without predicting better."""
        network, gp = self.network, self.gp
        if network is None or gp is None or self.comparison == _BETTER:
            return False
        if network.accuracy is not None and gp.accuracy is not None:
            lost = network.accuracy - gp.accuracy
            if lost > max(_LOST, 4 / self.num_examples):
                return True
        return self.comparison == _UNKNOWN and gp.nll > network.nll + _FAR

    @property
    def _useless(self) -> bool:
        """Whether a prediction that ignores the inputs has a smaller NLL."""
        scores = self.left_out or self.gp
        if scores is None or self.constant_nll is None or self.num_examples < _FEWEST:
            return False
        return scores.nll > self.constant_nll + _MUCH

    def _seen(self) -> Finding:
        if self.network is None or self.gp is None:
            reading = f"Accuracy and NLL on the training data: not available, because {self.unavailable}."
            return Finding("training data", CAUTION, reading, _COMPARE)
        reading = (
            f"On {self.num_examples} training examples, the network has {scores_words(self.network)}; the GP has "
            f"{scores_words(self.gp)}."
        )
        grade = BAD if self._damaged or (self._useless and self.left_out is None) else GOOD
        return Finding("training data", grade, reading, self._repair())

    def _unseen(self) -> Finding:
        what = "leave-one-out"
        if self.left_out is None or self.network_left_out is None:
            reading = f"Accuracy, NLL and calibration on unseen data: not available, because {self.unavailable}."
            return Finding(what, CAUTION, reading, self._judge_elsewhere())
        reading = (
            f"With each example left out, the GP has {scores_words(self.left_out)}; the network, estimated in the same "
            f"way, has an NLL of {self.network_left_out.nll:.3f}"
        )
        if self._useless:
            reading += f", and a guess that ignores the inputs one of {self.constant_nll:.3f}."
            worse = self.network_left_out.nll > (self.constant_nll or 0.0)
            train = "Train the network longer or on more data, and check δ and the noise, before you convert it again."
            return Finding(what, BAD, reading, train if worse else self._repair())
        if self.comparison == _UNKNOWN:
            return Finding(what, CAUTION, f"{reading}; {self.num_examples} examples are too few to tell.", _COMPARE)
        grade = {_SLIGHTLY_WORSE: CAUTION, _WORSE: BAD}.get(self.comparison, GOOD)
        return Finding(what, grade, f"{reading}.", self._repair())

    def _calibration(self) -> list[Finding]:
        """Confidence versus accuracy, or the coverage of intervals."""
        left, network = self.left_out, self.network
        if left is None or network is None:
            return self._doubts()
        if left.coverage is not None:
            return [self._coverage(left.coverage, network.coverage or 0.0)]
        if left.accuracy is None or left.confidence is None or left.ece is None or network.ece is None:
            why = "they need classes with hard labels, Gaussian noise or counts"
            return [Finding("calibration", GOOD, f"Calibration error and coverage: not available, because {why}.")]
        gap = left.confidence - left.accuracy
        allowed = _CONFIDENCE + 2 * sqrt(left.accuracy * (1 - left.accuracy) / self.num_examples)
        grade = GOOD if abs(gap) <= allowed else CAUTION
        how = "" if grade == GOOD else f": it is too {'sure' if gap > 0 else 'cautious'}"
        reading = (
            f"The calibration error (ECE) of the GP with each example left out is {percent(left.ece)}, with a mean "
            f"confidence of {percent(left.confidence)}{how}; that of the network on its training data is "
            f"{percent(network.ece)}."
        )
        return [Finding("calibration", grade, reading, self._repair())]

    def _doubts(self) -> list[Finding]:
        """If nothing is known about unseen data: whether the GP is far less confident than accurate on seen data."""
        gp = self.gp
        if gp is None or gp.accuracy is None or gp.confidence is None or gp.accuracy - gp.confidence <= _DOUBT:
            return []
        reading = (
            f"On the training data, the mean confidence of the GP is {percent(gp.confidence)}, although its accuracy "
            f"is {percent(gp.accuracy)}: it may be too cautious."
        )
        return [Finding("calibration", CAUTION, reading, self._judge_elsewhere())]

    def _coverage(self, coverage: float, of_network: float) -> Finding:
        allowed = _COVERAGE + 2 * sqrt(LEVEL * (1 - LEVEL) / self.num_examples)
        grade = GOOD if abs(coverage - LEVEL) <= allowed else CAUTION
        how = "" if grade == GOOD else f": it is too {'sure' if coverage < LEVEL else 'cautious'}"
        reading = (
            f"The {100 * LEVEL:.0f} % intervals of the GP contain {percent(coverage)} of the targets with each example "
            f"left out{how}; those of the network, with its noise alone, {percent(of_network)} of its training targets."
        )
        return Finding("calibration", grade, reading, self._repair())

    def _repair(self) -> str:
        if isinstance(self.mean, GaussNewtonStep):
            return "Convert without mean=, so that the mean and the calibration that predict best are chosen."
        if self.calibration.is_identity:
            return "Calibrate it with gp.calibrated(), or better with gp.calibrated((x, y)) on held-out data."
        return "To calibrate the GP, convert with validation=(x, y): data that the network was not trained on."

    def _judge_elsewhere(self) -> str:
        if "minimum" not in self.unavailable:
            return _COMPARE
        return f"Convert without mean=, which measures at the mode of the linearised network. {_COMPARE}"
