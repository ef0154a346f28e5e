"""A curve in summary: its arrays, the positions of its optima, and its panel in a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dnn2gp.evidence.tuning_result import TuningResult
from dnn2gp.paper.evidence_curves import GRADIENT
from dnn2gp.plots.tuning_panels import Panel


def curve_arrays(found: TuningResult, name: str, prefix: str) -> dict[str, np.ndarray]:
    """PREFIX_VALUE_mean and PREFIX_VALUE_stderr along the hyperparameter, for every value of the trials.

    For the relative gradient, whose mean says little, the median and the maximum over the draws instead.
    """
    arrays: dict[str, np.ndarray] = {}
    for value in found.values:
        curve, own = found.curve(name, value), f"{prefix}_{value}"
        if value == GRADIENT:
            draws = [[t.values[value] for t in found.trials if t.settings[name] == each] for each in curve.settings]
            arrays |= {f"{own}_median": np.median(draws, 1), f"{own}_max": np.max(draws, 1)}
        else:
            arrays |= {f"{own}_mean": np.array(curve.mean), f"{own}_stderr": np.array(curve.stderr)}
    return arrays


@dataclass(frozen=True)
class Stars:
    """The positions of the largest evidence and of the smallest test error on a curve, marked by stars."""

    evidence: int
    test: int
    excess: float
    """The test error at the largest evidence relative to the smallest, minus 1."""

    @staticmethod
    def of(arrays: Mapping[str, np.ndarray], prefix: str) -> Stars:
        """The stars of the means along the hyperparameter; a point that diverged is neither."""
        evidence, error = arrays[f"{prefix}_evidence_mean"], arrays[f"{prefix}_test_error_mean"]
        chosen, best = int(np.nanargmax(evidence)), int(np.nanargmin(error))
        return Stars(chosen, best, float(error[chosen] / error[best] - 1))

    @property
    def steps(self) -> str:
        """Their distance on the grid, in words."""
        count = abs(self.evidence - self.test)
        return f"{count} grid step{'' if count == 1 else 's'}"

    @property
    def near(self) -> bool:
        """Whether they are at most one grid step apart."""
        return abs(self.evidence - self.test) <= 1


def curve_panel(
    own: Mapping[str, np.ndarray], prefix: str, settings: np.ndarray, label: str, title: str, *, log_x: bool = True
) -> Panel:
    """The evidence and both errors of a curve."""

    def band(name: str) -> tuple[np.ndarray, np.ndarray]:
        return own[f"{prefix}_{name}_mean"], own[f"{prefix}_{name}_stderr"]

    errors = {"train": band("train_error"), "test": band("test_error")}
    return Panel(settings, band("evidence"), errors, label, title, log_x)
