"""Two half moons: class probabilities, label noise, and what the network does not know.

python examples/classification_moons.py                      # writes classification_moons.png
python examples/classification_moons.py --output moons.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from sklearn.datasets import make_moons
from torch import Tensor, nn

from dnn2gp import BernoulliLikelihood, GaussianProcess, convert

DELTA = 0.26  # the prior precision δ
LIMITS = (-2.5, 3.5, -2.2, 2.7)


def train(network: nn.Module, x: Tensor, y: Tensor, likelihood: BernoulliLikelihood, steps: int) -> None:
    """Minimise Σᵢ ℓᵢ(w) + ½ δ wᵀw, Eq. (1)."""
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=steps, history_size=50, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        penalty = 0.5 * DELTA * sum(weight.square().sum() for weight in network.parameters())
        loss = likelihood.loss(network(x), y).sum() + penalty
        loss.backward()
        return loss

    optimizer.step(closure)


def draw(gp: GaussianProcess, x: Tensor, y: Tensor, resolution: int) -> Figure:
    """Draw the quantities of Eq. (48) over the plane, and the probability averaged over the posterior."""
    left, right, bottom, top = LIMITS
    rows, columns = torch.meshgrid(
        torch.linspace(bottom, top, resolution, dtype=torch.float64),
        torch.linspace(left, right, resolution, dtype=torch.float64),
        indexing="ij",
    )
    prediction = gp.predict(torch.stack([columns.flatten(), rows.flatten()], 1))
    panels = [
        ("Network: probability of class 1", prediction.mean, "RdBu_r", 1.0),
        ("Averaged over the posterior (probit)", prediction.probit(), "RdBu_r", 1.0),
        ("Aleatoric standard deviation: label noise", prediction.aleatoric.sqrt(), "viridis", 0.5),
        ("Epistemic standard deviation: lack of knowledge", prediction.epistemic.sqrt(), "viridis", 1.0),
    ]
    figure, grid = plt.subplots(2, 2, figsize=(10.5, 8), sharex=True, sharey=True, layout="constrained")
    for axes, (title, values, colours, largest) in zip(grid.flat, panels, strict=True):
        shaped = values.reshape(resolution, resolution)
        image = axes.imshow(shaped, extent=LIMITS, origin="lower", cmap=colours, vmin=0, vmax=largest)
        figure.colorbar(image, ax=axes, shrink=0.9, extend="max" if shaped.max() > largest else "neither")
        for label, colour in ((0, "#2b6cb0"), (1, "#c53030")):
            chosen = x[y[:, 0] == label]
            axes.plot(chosen[:, 0], chosen[:, 1], "o", color=colour, markeredgecolor="white", markersize=4.5)
        axes.contour(
            columns, rows, prediction.mean.reshape(resolution, resolution), [0.5], colors="white", linewidths=0.8
        )
        axes.set_title(title, fontsize=11)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("classification_moons.png"), help="file for the picture")
    parser.add_argument("--smoke", action="store_true", help="a short run with little data and few steps")
    arguments = parser.parse_args()

    points, labels = make_moons(20 if arguments.smoke else 100, noise=0.15, random_state=0)
    x, y = torch.as_tensor(points), torch.as_tensor(labels, dtype=torch.float64).unsqueeze(1)
    torch.manual_seed(0)  # the initial weights
    network = nn.Sequential(nn.Linear(2, 10), nn.Tanh(), nn.Linear(10, 1)).double()
    likelihood = BernoulliLikelihood()
    train(network, x, y, likelihood, steps=30 if arguments.smoke else 2000)

    gp = convert(network, (x, y), likelihood, prior_precision=DELTA)
    print(f"{gp.network.num_weights} weights, {len(x)} examples, inference in {gp.inference.name}")
    print(f"log evidence {gp.evidence().value:.2f}")
    far = gp.predict(torch.tensor([[0.5, 0.25], [3.0, 2.0]], dtype=torch.float64))
    for place, probability, softened in zip(("between the moons", "far away"), far.mean, far.probit(), strict=True):
        print(f"{place}: network {probability.item():.3f}, averaged over the posterior (probit) {softened.item():.3f}")

    draw(gp, x, y, resolution=20 if arguments.smoke else 120).savefig(arguments.output, dpi=120)
    print(f"picture: {arguments.output}")


if __name__ == "__main__":
    main()
