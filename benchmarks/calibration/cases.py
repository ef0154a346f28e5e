"""Which networks are measured, on splits of the data that no choice was based on.

The recipe of `dnn2gp.gp.automatic` was chosen on split 0 of the first eight sets, after looks at splits 1 and 2.
"""

from __future__ import annotations

from benchmarks.calibration.measure import MINIMUM
from benchmarks.calibration.networks import IMAGES, KINDS, REGIMES, SETS, Case
from benchmarks.calibration.regression import REGRESSIONS, RegressionCase

SPLITS = (3, 4)
"""Splits of the data that no choice was based on."""


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
    return [Case(data, regime, kind, SPLITS[0]) for data in IMAGES for regime, kind in kinds.items()]


MINIMA = ("cancer", "digits", "moons", "circles", "generated, 3 classes")


def _of(split: int) -> list[Case | RegressionCase]:
    """All networks of a split: small ones, images (with the first split only), minima and regressions."""
    regressions = zip(REGRESSIONS, ("tanh", "ReLU") * 3, strict=True)
    return [
        *(case for case in _small() if case.seed == split),
        *(case for case in _images() if case.seed == split),
        *(Case(data, MINIMUM, "tanh", split) for data in MINIMA),
        *(RegressionCase(data, kind, split) for data, kind in regressions),
    ]


CASES = [case for split in SPLITS for case in _of(split)]
