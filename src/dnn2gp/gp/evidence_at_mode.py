"""δ by the evidence at the mode of the linearised network (Antorán et al., 2022).

With θ(δ) the mode of the linearised network and Λ there,

    log p(D | f_w + J(θ − w)) − ½ δ ‖θ‖² − ½ log |I + SᵀKS| .

Every δ has its own mode, so each evaluation searches for one; the weights of the network matter only through its
features.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import exp, log

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.evidence.terms import evidence
from dnn2gp.evidence.tuning_result import Trial, TuningResult
from dnn2gp.features import NetworkFeatures
from dnn2gp.gp.means import at_mode
from dnn2gp.inference import Inference, LinearModel
from dnn2gp.inference.choice import start_for
from dnn2gp.likelihoods import Likelihood
from dnn2gp.network.layout import Layout
from dnn2gp.support.resumable import remembered
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.gaussian import Gaussian

_RANGE = (1e-4, 1e4)
"""The δ that are searched, for weights with a mean square of 1 in normalised layers."""
# A layer is normalised if multiplying its weights changes the outputs by less than this share of what they can.
_INVARIANT = 1e-3
PRECISION = "prior_precision"


def largest_evidence_at_mode(
    expansion: Expansion, likelihood: Likelihood, layout: Layout, choose: Callable[[LinearModel], Inference]
) -> tuple[Float[Tensor, " P"], TuningResult]:
    """The prior precision of each weight at the largest evidence, and every δ that was tried."""
    from scipy.optimize import minimize_scalar

    unit = normalised_precision(expansion, layout)
    method = choose(LinearModel.from_laplace(expansion, Gaussian.prior(unit)))
    trials: list[Trial] = []

    def at(log_delta: float) -> float:
        model = LinearModel.from_laplace(expansion, Gaussian.prior(exp(log_delta) * unit))
        return evidence(at_mode(partial(start_for, method, model), likelihood, method)).laplace

    def negative(log_delta: float) -> float:
        found = remembered("evidence", lambda: {"value": torch.tensor(at(log_delta), dtype=torch.float64)})
        value = found["value"].item()
        trials.append(Trial({PRECISION: exp(log_delta)}, {"evidence": value}))
        return -value

    low, high = (log(bound) for bound in _RANGE)
    minimize_scalar(negative, bounds=(low, high), method="bounded", options={"xatol": 0.02})
    best = max(trials, key=lambda trial: trial.evidence)
    delta = best.settings[PRECISION]
    assert isinstance(delta, float)
    inside = low + 0.1 < log(delta) < high - 0.1
    ordered = tuple(sorted(trials, key=lambda trial: float(trial.settings[PRECISION] or 0)))
    return delta * unit, TuningResult("evidence", ordered, dict(best.settings), best.evidence, inside)


def normalised_precision(expansion: Expansion, layout: Layout) -> Float[Tensor, " P"]:
    """The prior precision of each weight for δ = 1: 1, but P_l / ‖w_l‖² in a layer l that is normalised afterwards.

    The scale of the weights before a LayerNorm, say, does not matter to the network: J_l w_l = 0. With this prior it
    does not matter to the evidence either.
    """
    features, anchor = expansion.features, expansion.features.anchor
    unit = torch.ones_like(anchor)
    if not isinstance(features, NetworkFeatures):
        return unit
    parts = [layout.ranges[name] for name in layout.names]
    columns = anchor.new_zeros(len(anchor), len(parts))
    for column, part in enumerate(parts):
        columns[part, column] = anchor[part]
    few = expansion.subset(torch.arange(min(20, len(expansion.root)), device=anchor.device))
    pushed = features.team.sum(features.jvp(few.inputs, columns).square().sum((0, 1)))
    rows = features.ggn_diagonal(few.inputs, torch.eye(features.num_outputs).to(anchor).expand(len(few.root), -1, -1))
    for column, part in enumerate(parts):
        size = anchor[part].square().sum()
        if size > 0 and len(anchor[part]) > 1 and pushed[column] <= _INVARIANT**2 * rows[part].sum() * size:
            unit[part] = len(anchor[part]) / size
    return unit
