"""The networks that are measured, on splits of the data that no choice was based on.

The recipe of `dnn2gp.gp.automatic` was chosen on split 0 of the first eight sets; splits 1 to 4 have been looked at.
"""

from __future__ import annotations

from benchmarks.calibration.measure import MINIMUM
from benchmarks.calibration.networks import IMAGES, KINDS, MINIMA, REGIMES, SETS, Case
from benchmarks.calibration.regression import REGRESSIONS, RegressionCase

SPLITS = (5, 6)
"""Splits of the data that no choice was based on."""
MINIMUM_SPLITS = (5, 6)
"""Splits of `MINIMA` on which an estimator trains and tunes a network; no choice was based on these networks."""
IMAGE_SPLIT = 3
"""The random images of MNIST and Fashion-MNIST; no choice was based on them either."""
REGRESSION_SPLITS = (5, 6, 7, 8)
"""The same for regressions; more of them, as the coverage of a few hundred test examples varies by two points."""


def _small() -> list[Case]:
    """Every set with every regime; the kind of network changes from one to the next."""
    found = []
    for split in SPLITS:
        for first, data in enumerate(SETS):
            for second, regime in enumerate(REGIMES):
                found.append(Case(data, regime, KINDS[(first + second + split) % len(KINDS)], split))
    return found


def _images() -> list[Case]:
    kinds = {"early-stopped": "ReLU", "overfit": "BatchNorm", "underfit": "ReLU"}
    return [Case(data, regime, kind, IMAGE_SPLIT) for data in IMAGES for regime, kind in kinds.items()]


def _minima() -> list[Case]:
    return [Case(data, MINIMUM, "tanh", split) for split in MINIMUM_SPLITS for data in MINIMA]


def _regressions() -> list[RegressionCase]:
    kinds = dict(zip(REGRESSIONS, ("tanh", "ReLU") * 3, strict=True))
    return [RegressionCase(data, kind, split) for split in REGRESSION_SPLITS for data, kind in kinds.items()]


CASES: list[Case | RegressionCase] = [*_small(), *_regressions(), *_minima(), *_images()]
