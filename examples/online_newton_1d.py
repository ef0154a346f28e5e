"""Every iteration is a GP: train a network with VOGN, and draw its GP after 1, 10, 100 and 1000 steps.

python examples/online_newton_1d.py                      # writes online_newton_1d.png
python examples/online_newton_1d.py --output steps.png
python examples/online_newton_1d.py --output steps.gif   # an animation of 60 steps
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dnn2gp import VOGN, GaussianLikelihood
from dnn2gp.optim import Recorder
from dnn2gp.plots import posterior_animation, posterior_strip

SIGMA = 0.15  # standard deviation of the noise, in the data and in the likelihood
GAP = (-0.6, 1.2)


def make_data(num_examples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sample y = sin 1.5x + noise on both sides of a gap."""
    left = torch.linspace(-3, GAP[0], num_examples // 2, dtype=torch.float64)
    right = torch.linspace(GAP[1], 3, num_examples - num_examples // 2, dtype=torch.float64)
    x = torch.cat([left, right]).unsqueeze(1)
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    return x, torch.sin(1.5 * x) + SIGMA * noise


def train(network: nn.Module, x: Tensor, y: Tensor, recorder: Recorder, steps: int) -> VOGN:
    """Train in the usual loop; the recorder keeps the GP after the requested steps."""
    optimizer = VOGN(network, GaussianLikelihood(SIGMA), len(x), steps=steps, prior_precision=0.5, num_samples=4)
    optimizer.register_step_post_hook(recorder)
    for step in range(1, steps + 1):
        info = optimizer.step(x, y)
        if step in recorder.steps:
            print(f"step {step:5d}: loss {info.loss:8.3f}, ELBO {optimizer.elbo((x, y)):10.1f}")
    return optimizer


def draw(recorder: Recorder, x: Tensor, y: Tensor, output: Path) -> None:
    """Draw the mean and the bands of each recorded GP."""
    grid = torch.linspace(-4.5, 4.5, 300, dtype=torch.float64).unsqueeze(1)
    predictions = [record.gp.predict(grid) for record in recorder.records]
    means = np.stack([prediction.mean.flatten().numpy() for prediction in predictions])
    epistemic = np.stack([prediction.epistemic.flatten().sqrt().numpy() for prediction in predictions])
    steps = [record.step for record in recorder.records]
    arguments = steps, grid.flatten().numpy(), means, epistemic, SIGMA, (x.flatten().numpy(), y.flatten().numpy())
    if output.suffix == ".gif":
        posterior_animation(*arguments).save(output, writer="pillow", dpi=90)
    else:
        posterior_strip(*arguments).savefig(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("online_newton_1d.png"), help="file for the picture")
    parser.add_argument("--smoke", action="store_true", help="a short run with little data and few steps")
    arguments = parser.parse_args()

    steps = [1, 2, 3] if arguments.smoke else [1, 10, 100, 1000]
    if arguments.output.suffix == ".gif" and not arguments.smoke:
        steps = sorted({round(step) for step in np.geomspace(1, 1000, 60)})
    torch.manual_seed(0)  # the initial weights
    x, y = make_data(10 if arguments.smoke else 50, torch.Generator().manual_seed(0))
    network = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1)).double()
    recorder = Recorder((x, y), steps)
    train(network, x, y, recorder, max(steps))
    draw(recorder, x, y, arguments.output)
    print(f"picture: {arguments.output}")


if __name__ == "__main__":
    main()
