"""1-D regression with a gap in the data: the noise stays the same, and uncertainty grows where data is missing.

python examples/regression_1d.py                      # writes regression_1d.png
python examples/regression_1d.py --output bands.png
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

from dnn2gp import GaussianLikelihood, GaussianProcess, convert

SIGMA = 0.15  # standard deviation of the noise, in the data and in the likelihood
DELTA = 0.5  # the prior precision δ: penalty ½ δ wᵀw in training, prior N(0, δ⁻¹I) of the GP
GAP = (-0.6, 1.2)


def make_data(num_examples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sample y = sin 2x + noise on both sides of the gap."""
    left = torch.linspace(-3, GAP[0], num_examples // 2, dtype=torch.float64)
    right = torch.linspace(GAP[1], 3, num_examples - num_examples // 2, dtype=torch.float64)
    x = torch.cat([left, right]).unsqueeze(1)
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    return x, torch.sin(2 * x) + SIGMA * noise


def train(network: nn.Module, x: Tensor, y: Tensor, likelihood: GaussianLikelihood, steps: int) -> None:
    """Minimise Σᵢ ℓᵢ(w) + ½ δ wᵀw, Eq. (1), until convergence, because Theorem 1 holds only at a minimum."""
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=steps, history_size=50, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        penalty = 0.5 * DELTA * sum(weight.square().sum() for weight in network.parameters())
        loss = likelihood.loss(network(x), y).sum() + penalty
        loss.backward()
        return loss

    optimizer.step(closure)


def draw(gp: GaussianProcess, x: Tensor, y: Tensor, num_samples: int) -> Figure:
    """Draw the mean with its two bands (left), and functions from the posterior (right)."""
    grid = torch.linspace(-4.5, 4.5, 300, dtype=torch.float64).unsqueeze(1)
    prediction = gp.predict(grid)
    mean, epistemic, total = (
        values.squeeze(1).numpy() for values in (prediction.mean, prediction.epistemic.sqrt(), prediction.std)
    )
    samples = gp.sample_functions(num_samples, torch.Generator().manual_seed(1))(grid).squeeze(-1).numpy()
    line = grid.squeeze(1).numpy()

    figure, (bands, functions) = plt.subplots(1, 2, figsize=(11, 4), sharex=True, sharey=True, layout="constrained")
    bands.fill_between(line, mean - 2 * total, mean + 2 * total, color="#cfd8e6", label="aleatoric + epistemic")
    bands.fill_between(line, mean - 2 * epistemic, mean + 2 * epistemic, color="#7f9fd0", label="epistemic only")
    bands.plot(line, mean, color="#1d3d78", label="mean")
    bands.set(title="Mean ± 2 standard deviations", xlabel="x", ylabel="y", ylim=(-3.4, 3.4), xlim=(line[0], line[-1]))
    functions.plot(line, samples.T, color="#1d3d78", linewidth=0.9, alpha=0.55)
    functions.set(title=f"{num_samples} functions drawn from the posterior", xlabel="x")
    for axes in (bands, functions):
        axes.axvspan(*GAP, color="#f3e3c3", alpha=0.6, zorder=0, linewidth=0)
        axes.plot(x.squeeze(1), y.squeeze(1), "k.", markersize=5, label="data")
        axes.text(sum(GAP) / 2, -3.2, "no data", ha="center", color="#7a5a16")
    bands.legend(loc="upper left", frameon=False, ncols=2, fontsize=9)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("regression_1d.png"), help="file for the picture")
    parser.add_argument("--smoke", action="store_true", help="a short run with little data and few steps")
    arguments = parser.parse_args()

    torch.manual_seed(0)  # the initial weights
    x, y = make_data(10 if arguments.smoke else 50, torch.Generator().manual_seed(0))
    network = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1)).double()
    likelihood = GaussianLikelihood(sigma=SIGMA)
    train(network, x, y, likelihood, steps=50 if arguments.smoke else 2000)

    gp = convert(network, (x, y), likelihood, prior_precision=DELTA)
    print(f"{gp.network.num_weights} weights, {len(x)} examples, inference in {gp.inference.name}")
    print(f"log evidence {gp.evidence().value:.2f}")
    middle = gp.predict(torch.tensor([[sum(GAP) / 2], [2.0]], dtype=torch.float64)).epistemic.sqrt().flatten()
    print(f"epistemic standard deviation: {middle[0]:.3f} inside the gap, {middle[1]:.3f} among the data")

    draw(gp, x, y, num_samples=8).savefig(arguments.output, dpi=120)
    print(f"picture: {arguments.output}")


if __name__ == "__main__":
    main()
