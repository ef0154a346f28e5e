"""The pictures of a tuning."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from dnn2gp import plots
from dnn2gp.apps.table_tuning.tasks import Task
from dnn2gp.evidence.tuning_result import TuningResult
from dnn2gp.gp.gaussian_process import GaussianProcess

_LABELS = {"width": "width (hidden units per layer)", "depth": "depth (hidden layers)"}
# The curve of δ extends this many decades to either side of the choice.
_DECADES, _POINTS = 1.5, 61


def setting_curves(tuning: TuningResult, task: Task) -> dict[str, Figure]:
    """Errors and evidence along each setting that was varied, with the others as in the best setting."""
    found = {}
    for name in tuning.names:
        curve = tuning.curve(name)
        if len(curve.settings) < 2:
            continue
        errors = {}
        for part in ("train", "test"):
            if f"{part}_error" in tuning.values:
                own = tuning.curve(name, f"{part}_error")
                errors[part] = (own.mean, own.stderr)
        found[name] = plots.tuning_curves(
            [float(str(setting)) for setting in curve.settings],
            (curve.mean, curve.stderr),
            errors,
            xlabel=_LABELS[name],
            log_x=name == "width",
            title=f"{name.capitalize()} of the network",
            error_label=task.error_label,
        )
    return found


def precision_curve(gp: GaussianProcess, prior_precision: float) -> Figure:
    """The log evidence as a function of δ, with the features of the final network."""
    factors = torch.logspace(-_DECADES, _DECADES, _POINTS, dtype=torch.float64)
    values = gp.evidence_function()(factors, torch.ones_like(factors))
    return plots.tuning_curves(
        (prior_precision * factors).tolist(),
        (values.detach().numpy(), torch.zeros_like(factors).numpy()),
        xlabel="prior precision δ",
        log_x=True,
        chosen=prior_precision,
        title="Prior precision of the final network",
    )
