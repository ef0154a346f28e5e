"""Measure how far `convert` is from brute force on every network of the zoo, and write docs/networks.md.

python tools/network_table.py
"""

from __future__ import annotations

import copy
import sys
import warnings
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import dnn2gp  # noqa: E402
from dnn2gp.inference import GaussNewtonStep  # noqa: E402
from dnn2gp.network.inputs import map_inputs  # noqa: E402

from zoo import ZOO, brute_force_gp, specimen  # noqa: E402

DELTA = 1.0
TOLERANCE = {"float64": 1e-10, "float32": 1e-4}


def gaps(name: str, dtype: str) -> dict[str, float]:
    """Return the largest difference of each quantity from brute force in float64, relative to its largest entry."""
    case = specimen(name)
    expected = brute_force_gp(case, DELTA)
    kind = getattr(torch, dtype)

    def cast(leaf: torch.Tensor) -> torch.Tensor:
        return leaf.to(kind) if leaf.is_floating_point() else leaf

    module = copy.deepcopy(case.module).to(kind)
    inputs, test_inputs = map_inputs(cast, case.inputs), map_inputs(cast, case.test_inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dnn2gp.support.errors.NotAMinimumWarning)
        data, mean = (inputs, cast(case.targets)), GaussNewtonStep()
        gp = dnn2gp.convert(module, data, case.entry.likelihood, DELTA, mean=mean)
    found = {
        "Jacobian": gp.features.jacobian(gp.network.check_inputs(test_inputs)),
        "kernel": gp.kernel.full(test_inputs),
        "posterior covariance": gp.covariance(test_inputs),
        "posterior mean": gp.predict(test_inputs).latent_mean,
        "log determinant": torch.tensor(2 * gp.evidence().complexity, dtype=torch.float64),
    }
    return {key: _gap(found[key], value) for key, value in expected.items()}


def _gap(found: torch.Tensor, expected: torch.Tensor) -> float:
    if found.shape != expected.shape:
        return float("inf")
    return ((found.double() - expected).abs().max() / expected.abs().max()).item()


def render(rows: dict[str, tuple[int, dict[str, dict[str, float]]]]) -> str:
    """Return the page, with the worst quantity of each network in the table."""
    lines = [
        "# Networks that `convert` has been checked on",
        "",
        "For each network, the table shows the largest difference between `convert` and brute-force autograd in",
        "float64, which uses one backward pass per example and output and explicit matrices. Differences are relative",
        "to the largest entry. They cover the Jacobian, the kernel, the joint posterior covariance, the posterior mean",
        "and the log-determinant of the evidence, at random weights. The float32 column compares a float32 network",
        "with brute force in float64. `python tools/network_table.py` writes this page; the tests check the bounds",
        f"{TOLERANCE['float64']:.0e} and {TOLERANCE['float32']:.0e}.",
        "",
        "| network | weights | float64 | float32 | worst quantity (float32) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, (weights, found) in rows.items():
        worst = max(found["float32"], key=lambda key: found["float32"][key])
        errors = " | ".join(f"{max(found[dtype].values()):.0e}" for dtype in ("float64", "float32"))
        lines.append(f"| {name} | {weights} | {errors} | {worst} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure every network and write the page."""
    rows = {}
    for name in ZOO:
        weights = sum(p.numel() for p in specimen(name).module.parameters() if p.requires_grad)
        rows[name] = (weights, {dtype: gaps(name, dtype) for dtype in TOLERANCE})
        print(name, rows[name][1])
    (ROOT / "docs" / "networks.md").write_text(render(rows))


if __name__ == "__main__":
    main()
