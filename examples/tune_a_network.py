"""Choose δ, σ and the width of a network by the evidence of its training data, and compare with the test error.

python examples/tune_a_network.py                      # writes tune_a_network.png
python examples/tune_a_network.py --output curves.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from dnn2gp import GaussianLikelihood, tune
from dnn2gp.evidence import TuningResult

NOISE = 0.3  # the true noise, which the evidence has to recover


def make_data(num_examples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sample y = sin 2x + noise."""
    x = 6 * torch.rand(num_examples, 1, generator=generator, dtype=torch.float64) - 3
    return x, torch.sin(2 * x) + NOISE * torch.randn(x.shape, generator=generator, dtype=torch.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("tune_a_network.png"), help="file for the picture")
    parser.add_argument("--smoke", action="store_true", help="a short run with few widths and rounds")
    given = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    (x, y), (x_test, y_test) = make_data(60, generator), make_data(1000, generator)
    rounds = 2 if given.smoke else 10

    def fit(width: int, repeat: int) -> dict[str, float]:
        """Alternate between training and tuning δ and σ at this width; the test error is only for the picture."""
        torch.manual_seed(repeat)
        network = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1)).double()
        found = tune.gradient(network, (x, y), GaussianLikelihood(), max_rounds=rounds, tolerance=0.2)
        error = (found.network(x_test) - y_test).square().mean().item()
        sigma, delta = found.best["sigma"], found.best["prior_precision"]
        return {"evidence": found.evidence, "test_error": error, "sigma": float(sigma), "delta": float(delta)}

    widths = [1, 3] if given.smoke else [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    result = tune.grid(fit, {"width": widths}, repeats=1 if given.smoke else 5, progress=True)
    print(result)
    chosen = [trial for trial in result.trials if trial.settings == result.best]
    print(f"estimated σ: {sum(trial.values['sigma'] for trial in chosen) / len(chosen):.3f}; true σ: {NOISE}")
    draw(result).savefig(given.output, dpi=150)
    print(f"picture: {given.output}")


def draw(result: TuningResult) -> Figure:
    """Draw the evidence on the training data (left) and the test error (right)."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharex=True, layout="constrained")
    panels = {"evidence": "Log evidence of 60 training points", "test_error": "Squared error on 1000 test points"}
    for axis, (value, label) in zip(axes, panels.items(), strict=True):
        curve = result.curve("width", value)
        axis.errorbar(curve.settings, curve.mean, curve.stderr, color="#1d3d78", capsize=3)
        best = (max if value == "evidence" else min)(range(len(curve.mean)), key=curve.mean.__getitem__)
        axis.plot(curve.settings[best], curve.mean[best], "k*", markersize=14, label="best value of the curve")
        axis.axvline(result.best["width"], color="#b08d3c", linestyle=":", label="chosen by the evidence")
        axis.set(title=label, xlabel="hidden units", xscale="log")
        axis.set_xticks(curve.settings, [str(width) for width in curve.settings])
        axis.minorticks_off()
    axes[1].axhline(NOISE**2, color="grey", linewidth=0.8, label="noise of the data")
    axes[1].legend()
    return figure


if __name__ == "__main__":
    main()
