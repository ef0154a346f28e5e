"""Beyond the paper: the GPs of increasingly wide networks at random weights, compared with the infinite limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import LayerwiseFeatures
from dnn2gp.network import Network
from dnn2gp.paper.figure import Arrays, Drawings, FigureKind, FigureResult, Findings, Workspace, written
from dnn2gp.paper.networks import ErfNetwork, infinite_kernel
from dnn2gp.plots.report.section import Claim
from dnn2gp.plots.widths import widths
from dnn2gp.support.progress import track
from dnn2gp.weights.priors import expand_precision
from dnn2gp.weights.structures import DiagonalPrecision


@dataclass(frozen=True)
class WidthConfig:
    """A noisy sine, and networks whose units are error functions."""

    widths: tuple[int, ...] = (4, 16, 64, 256, 1024, 4096, 16384)
    repeats: int = 10
    num_examples: int = 12
    sigma: float = 0.1
    extent: tuple[float, float] = (-4.0, 4.0)
    resolution: int = 121
    seed: int = 0


def compute(config: WidthConfig, workspace: Workspace) -> Findings:
    """The kernels and GP predictions of each width and repeat, and their distance from the limit."""
    generator = torch.Generator().manual_seed(config.seed)
    inputs = 3 * (2 * torch.rand(config.num_examples, 1, generator=generator, dtype=torch.float64) - 1)
    noise = torch.randn(config.num_examples, 1, generator=generator, dtype=torch.float64)
    targets = torch.sin(2 * inputs) + config.sigma * noise
    x = torch.linspace(*config.extent, config.resolution, dtype=torch.float64)[:, None]
    points = torch.cat([inputs, x])
    limit = infinite_kernel(points, points)
    gaps = np.zeros((2, len(config.widths), config.repeats))
    means, stds = np.zeros((2, len(config.widths), config.repeats, len(x)))
    jobs = [(place, repeat) for place in range(len(config.widths)) for repeat in range(config.repeats)]
    for place, repeat in track(jobs, "increasingly wide networks", total=len(jobs)):
        network = ErfNetwork(1, config.widths[place], generator)
        for kind, last_layer in enumerate((False, True)):
            exact = infinite_kernel(points, points, last_layer=last_layer)
            found = _kernel(network, points, last_layer=last_layer)
            gaps[kind, place, repeat] = ((found - exact).norm() / exact.norm()).item()
            if not last_layer:
                means[place, repeat], stds[place, repeat] = _predict(found, targets, config.sigma)
    mean, std = _predict(limit, targets, config.sigma)
    arrays = {
        "inputs": inputs[:, 0].numpy(),
        "targets": targets[:, 0].numpy(),
        "x": x[:, 0].numpy(),
        "widths": np.array(config.widths),
        "kernel_error": gaps[0],
        "last_layer_error": gaps[1],
        "means": means,
        "stds": stds,
        "infinite_mean": mean,
        "infinite_std": std,
    }
    return Findings(arrays)


def _kernel(network: ErfNetwork, points: Tensor, *, last_layer: bool) -> Float[Tensor, "N N"]:
    """J V Jᵀ at the network's random weights, over all weights or over the last layer."""
    function = Network(network, points)
    function = function.restricted(["output.weight"]) if last_layer else function
    precision = {name: value for name, value in network.prior_precision.items() if not last_layer or name == "output"}
    diagonal = DiagonalPrecision(expand_precision(precision, function.layout, function.weights))
    return LayerwiseFeatures(function, points).kernel_full(points, diagonal)[:, 0, :, 0]


def _predict(
    kernel: Float[Tensor, "N N"], targets: Float[Tensor, "n 1"], sigma: float
) -> tuple[np.ndarray, np.ndarray]:
    """The mean and standard deviation of f at the points after the first n, which are the data."""
    n = len(targets)
    factor = torch.linalg.cholesky(kernel[:n, :n] + sigma**2 * torch.eye(n, dtype=kernel.dtype))
    white = torch.linalg.solve_triangular(factor, kernel[:n, n:], upper=False)
    mean = white.T @ torch.linalg.solve_triangular(factor, targets, upper=False)
    variance = kernel[n:, n:].diagonal() - white.square().sum(0)
    return mean[:, 0].numpy(), variance.clamp(min=0).sqrt().numpy()


def claims(arrays: Arrays, config: WidthConfig) -> tuple[Claim, ...]:
    """Both kernels converge to their limits as 1/√H."""
    found = []
    logs = np.log(arrays["widths"])
    for name, words in (("last_layer_error", "the last layer alone (Williams, 1997)"), ("kernel_error", "all weights")):
        errors = arrays[name].mean(1)
        slope = float(np.polyfit(logs, np.log(errors), 1)[0])
        text = f"{errors[0]:.0%} off with {arrays['widths'][0]} units, {errors[-1]:.2%} with {arrays['widths'][-1]:,}"
        found.append(
            Claim(
                f"the kernel of {words} converges to its infinite limit",
                "theory: as 1/√width, slope −0.5",
                f"{text}; slope {written(slope, '.2f')}",
                abs(slope + 0.5) < 0.1,
            )
        )
    return tuple(found)


def draw(result: FigureResult) -> Drawings:
    """Errors of the kernels along the width, and some GPs."""
    own = result.arrays
    errors = {"all weights": own["kernel_error"], "last layer": own["last_layer_error"]}
    limit, data = (own["infinite_mean"], own["infinite_std"]), (own["inputs"], own["targets"])
    return {"": widths(own["widths"], errors, own["x"], own["means"], own["stds"], limit, data)}


FIGURE = FigureKind(
    name="width",
    order=100,
    title="Beyond the paper: towards infinite width",
    caption="The kernels of networks with error-function activations and random weights, compared with the exact "
    "kernels of infinitely wide networks (Williams, 1997, for the last layer alone), and the resulting GPs.",
    paper=WidthConfig(),
    smoke=WidthConfig(widths=(4, 64), repeats=2, resolution=15),
    compute=compute,
    claims=claims,
    draw=draw,
)
