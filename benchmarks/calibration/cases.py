"""Which networks are measured. The recipe of `dnn2gp.gp.automatic` was chosen on split 0 of the first eight sets."""

from __future__ import annotations

from benchmarks.calibration.measure import MINIMUM
from benchmarks.calibration.networks import IMAGES, KINDS, REGIMES, SETS, Case
from benchmarks.calibration.regression import REGRESSIONS, RegressionCase

SPLITS = (1, 2)
"""Splits of the data other than the one that the recipe was first chosen on."""


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
    return [Case(data, regime, kind, 1) for data in IMAGES for regime, kind in kinds.items()]


MINIMA = ("cancer", "digits", "moons", "circles", "generated, 3 classes")
CASES: list[Case | RegressionCase] = [
    *_small(),
    *_images(),
    *(Case(data, MINIMUM, "tanh", split) for split in SPLITS for data in MINIMA),
    *(
        RegressionCase(data, kind, split)
        for split in SPLITS
        for data, kind in zip(REGRESSIONS, ("tanh", "ReLU") * 3, strict=True)
    ),
]
