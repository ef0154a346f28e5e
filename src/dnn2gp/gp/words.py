"""Numbers of a diagnosis in words."""

from __future__ import annotations

from dnn2gp.gp.scores import Scores
from dnn2gp.inference.calibration import Calibration


def scores_words(scores: Scores) -> str:
    """E.g. "an accuracy of 97.3 % and an NLL of 0.167"."""
    parts = []
    if scores.accuracy is not None:
        parts.append(f"an accuracy of {percent(scores.accuracy)}")
    if scores.rmse is not None:
        parts.append(f"a root mean square error of {scores.rmse:.3g}")
    return " and ".join([*parts, f"an NLL of {scores.nll:.3f}"])


def percent(share: float) -> str:
    """With one decimal."""
    return f"{100 * share:.1f} %"


def prior_words(prior_precision: tuple[float, float], *, tuned: bool) -> str:
    """δ, and where it comes from."""
    low, high = prior_precision
    values = f"δ = {low:.3g}" if low == high else f"δ from {low:.3g} to {high:.3g}"
    return f"{values} (largest evidence)" if tuned else values


def share_words(share: float) -> str:
    """Which weights have a posterior, if not all."""
    if share == 1:
        return ""
    return f" of {100 * share:.3g} % of the weights (the others, frozen or not in subset=, are treated as known)"


def calibration_words(calibration: Calibration) -> str:
    """Those of a, τ and s that change something."""
    if calibration.is_identity:
        return "no calibration"
    parts = [f"covariance scaled by a = {calibration.scale:.3g}"]
    if calibration.scale == 0:
        parts = ["covariance left out (a = 0), so .epistemic is 0; .uncalibrated.epistemic is that of the posterior"]
    if matters(calibration.temperature):
        parts.append(f"temperature τ = {calibration.temperature:.3g}")
    if matters(calibration.noise):
        parts.append(f"noise scaled by s = {calibration.noise:.3g}")
    return "calibration: " + ", ".join(parts)


def matters(factor: float) -> bool:
    """Whether a factor is not 1 to three digits."""
    return f"{factor:.3g}" != "1"
