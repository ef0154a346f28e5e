"""Fig. 4(c): LeNet-5 trained by VOGN on the digits 0 and 1 alone, looked at on all ten."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from dnn2gp.experiments.images import VI, ImagesConfig, accuracy_claim, correlations, look_at_all
from dnn2gp.experiments.result import Claim, Result, check_preset, plain


def preset(name: str) -> ImagesConfig:
    """`paper`, or `smoke`: a little of it."""
    whole = ImagesConfig(classes=(0, 1), methods=(VI,), vogn_epochs=20)
    return whole.smaller() if check_preset(name) == "smoke" else whole


def run(config: ImagesConfig, folder: Path) -> Result:
    """Train on some of the digits; kernel and posterior mean of some examples of every digit."""
    begin = time.perf_counter()
    arrays = look_at_all(config, folder)
    return Result("binary_mnist", plain(config), arrays, _claims(arrays, config), time.perf_counter() - begin)


def _claims(arrays: dict[str, np.ndarray], config: ImagesConfig) -> tuple[Claim, ...]:
    found = []
    seen = np.isin(arrays["labels"], config.classes)
    digits = " and ".join(map(str, config.classes))
    for method in config.methods:
        accuracy = float(arrays[f"{method}_accuracy"])
        found.append(accuracy_claim(f"LeNet-5 by VOGN on {digits}", accuracy, "not said", None))
        size = np.abs(arrays[f"{method}_posterior_mean"]).mean(1)
        inside, outside = float(size[seen].mean()), float(size[~seen].mean())
        found.append(
            Claim(
                "the posterior mean is smaller on digits that were never seen",
                "Fig. 4(c): no overconfident predictions outside (here: below)",
                f"mean |E f| {outside:.3g} on unseen digits, {inside:.3g} on {digits}",
                outside < inside,
            )
        )
        kernel = np.abs(correlations(arrays[f"{method}_kernel"]))
        inner = kernel[np.ix_(seen, seen)]
        within = float(inner[~np.eye(len(inner), dtype=bool)].mean())
        beyond = float(kernel[np.ix_(seen, ~seen)].mean())
        found.append(
            Claim(
                "correlations with unseen digits are slight",
                f"Fig. 4(c): slight; strong between {digits} (here: below)",
                f"mean |correlation| {beyond:.3g} with unseen digits, {within:.3g} among {digits}",
                beyond < within,
            )
        )
    return tuple(found)
