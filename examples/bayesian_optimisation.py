"""Bayesian optimisation: evaluate next where the GP of a network is most promising, found by gradient ascent.

python examples/bayesian_optimisation.py                      # writes bayesian_optimisation.png
python examples/bayesian_optimisation.py --output search.png
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from dnn2gp import GaussianLikelihood, GaussianProcess, convert
from dnn2gp.support.errors import NotAMinimumWarning

SIGMA = 0.05  # standard deviation of the noise of an evaluation
DELTA = 0.2  # the prior precision δ
CAUTION = 2.0  # epistemic standard deviations between the mean and the upper bound
LOW, HIGH = -3.0, 3.0


def objective(x: Tensor) -> Tensor:
    """Return the value to maximise, which would be expensive to evaluate in practice."""
    return torch.sin(3 * x) - 0.15 * (x - 1) ** 2


def fitted(x: Tensor, y: Tensor, steps: int) -> GaussianProcess:
    """Train a network to a minimum of Σᵢ ℓᵢ(w) + ½ δ wᵀw and convert it."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    likelihood = GaussianLikelihood(sigma=SIGMA)
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=steps, history_size=50, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        penalty = 0.5 * DELTA * sum(weight.square().sum() for weight in network.parameters())
        loss = likelihood.loss(network(x), y).sum() + penalty
        loss.backward()
        return loss

    optimizer.step(closure)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotAMinimumWarning)  # close enough for a search
        return convert(network, (x, y), likelihood, prior_precision=DELTA)


def bound(gp: GaussianProcess, x: Tensor) -> Tensor:
    """Return the upper confidence bound: mean + 2 epistemic standard deviations."""
    prediction = gp.predict(x)
    return prediction.mean + CAUTION * prediction.epistemic.sqrt()


def most_promising(gp: GaussianProcess, num_starts: int) -> Tensor:
    """Maximise the bound from several starts; gradients flow through mean, variance and network to the inputs."""
    x = torch.linspace(LOW, HIGH, num_starts, dtype=torch.float64).unsqueeze(1).requires_grad_(True)
    optimizer = torch.optim.Adam([x], lr=0.05)
    for _ in range(40):
        optimizer.zero_grad()
        (-bound(gp, x).sum()).backward()
        optimizer.step()
        with torch.no_grad():
            x.clamp_(LOW, HIGH)
    x = x.detach()
    return x[bound(gp, x).argmax(0)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("bayesian_optimisation.png"), help="file for the picture")
    parser.add_argument("--smoke", action="store_true", help="a short run with few rounds")
    arguments = parser.parse_args()

    generator = torch.Generator().manual_seed(0)
    x = torch.tensor([[-2.5], [0.2], [2.8]], dtype=torch.float64)
    y = objective(x)
    for number in range(1 if arguments.smoke else 10):
        gp = fitted(x, y, steps=50 if arguments.smoke else 500)
        new = most_promising(gp, num_starts=5 if arguments.smoke else 15)
        value = objective(new) + SIGMA * torch.randn(new.shape, generator=generator, dtype=torch.float64)
        x, y = torch.cat([x, new]), torch.cat([y, value])
        print(f"round {number + 1}: evaluated {new.item():+.3f}, value {value.item():+.3f}, best so far {y.max():+.3f}")

    gp = fitted(x, y, steps=50 if arguments.smoke else 500)
    grid = torch.linspace(LOW, HIGH, 300, dtype=torch.float64).unsqueeze(1)
    prediction = gp.predict(grid)
    line, mean, width = (v.squeeze(1).numpy() for v in (grid, prediction.mean, CAUTION * prediction.epistemic.sqrt()))
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.fill_between(line, mean - width, mean + width, color="#cfd8e6", label="mean ± 2 epistemic standard deviations")
    axes.plot(line, mean, color="#1d3d78", label="mean")
    axes.plot(line, objective(grid).squeeze(1), "k--", linewidth=0.9, label="objective")
    axes.plot(x[:3], y[:3], "ks", markersize=5, label="initial evaluations")
    axes.plot(x[3:], y[3:], "o", color="#b5432a", markersize=5, label="chosen evaluations")
    axes.set(xlabel="x", ylabel="value", xlim=(LOW, HIGH))
    axes.legend(loc="lower center", frameon=False, ncols=2, fontsize=9)
    figure.savefig(arguments.output, dpi=120)
    print(f"picture: {arguments.output}")


if __name__ == "__main__":
    main()
