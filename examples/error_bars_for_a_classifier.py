"""Error bars for a classifier trained in the usual way: which ways of converting it help, and which do harm?

A small convolutional network is trained on 2,000 images of digits by Adam with mini-batches and weight decay. Every
line of the table is one way to turn it into a GP; any warnings are printed below it.

    python examples/error_bars_for_a_classifier.py            # MNIST
    python examples/error_bars_for_a_classifier.py --smoke    # scikit-learn's digits, a few seconds
"""

from __future__ import annotations

import argparse
import textwrap
import warnings

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from dnn2gp import (
    CategoricalLikelihood,
    GaussianProcess,
    GaussNewtonStep,
    Kronecker,
    NetworkOutput,
    convert,
    diagnose,
    precision_from_weight_decay,
)
from dnn2gp.inference.metrics import accuracy, ece, nll
from dnn2gp.plots import style

DECAY = 1e-3
_SAME, _NOISE = "#7a7a7a", 0.005


def main() -> None:
    """Train, convert in eight ways, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a short run")
    parser.add_argument("--output", default="error_bars_for_a_classifier.png", help="the picture to write")
    options = parser.parse_args()
    smoke = options.smoke
    train, validation, test = small_digits() if smoke else mnist()
    network = trained(train, epochs=30 if smoke else 8)
    with torch.no_grad():
        values = {"the network itself": report("the network itself", torch.softmax(network(test[0]), 1), test[1])}
    delta = precision_from_weight_decay(DECAY, num_examples=len(train[1]))
    ways = {
        "convert(network, data, likelihood)": {},
        "  ..., validation=held_out": {"validation": validation},
        "  ..., prior_precision=δ of the decay": {"prior_precision": delta},
        '  ..., subset="last layer"': {"subset": "last layer"},
        "  ..., δ of the decay, last layer": {"prior_precision": delta, "subset": "last layer"},
        "  ..., structure=Kronecker()": {"structure": Kronecker()},
        "  ..., mean=NetworkOutput()": {"mean": NetworkOutput()},
        "  ..., last layer, one Gauss-Newton step": {
            "prior_precision": delta,
            "subset": "last layer",
            "mean": GaussNewtonStep(),
        },
    }
    first = None
    for name, settings in ways.items():
        gp, values[name] = converted(name, network, train, test, settings)
        first = first or gp
    print(f"\n{diagnose(first)}")
    draw(values).savefig(options.output)


def converted(
    name: str, network: nn.Module, train: tuple, test: tuple, settings: dict
) -> tuple[GaussianProcess, tuple[float, float]]:
    """The GP with its accuracy and NLL, and what convert has to say about it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gp = convert(network, train, CategoricalLikelihood(), **settings)
    found = report(name, gp.predict(test[0]).probabilities, test[1])
    for warning in caught:
        print(textwrap.indent(textwrap.fill(f"{warning.category.__name__}: {warning.message}", 100), "      "))
    return gp, found


def report(name: str, probabilities: Tensor, labels: Tensor) -> tuple[float, float]:
    """One line of the table; returns accuracy and NLL."""
    found = accuracy(probabilities, labels), nll(probabilities, labels)
    print(f"{name:45s} accuracy {found[0]:6.1%}   NLL {found[1]:6.3f}   ECE {ece(probabilities, labels):.3f}")
    return found


def draw(values: dict[str, tuple[float, float]]) -> Figure:
    """The NLL of each way as a bar, and its accuracy beside it."""
    figure = style.new_figure(8.5, 4.0)
    axes = figure.subplots()
    heights = [value for _, value in values.values()]
    limit = heights[0]
    colours = [_SAME if abs(own - limit) < _NOISE else style.RIGHT if own < limit else style.WRONG for own in heights]
    axes.barh(range(len(values)), heights, color=colours)
    axes.axvline(limit, color="black", linewidth=0.8, linestyle=":", zorder=1)
    for row, (share, value) in enumerate(values.values()):
        words = f"{value:.3f}, accuracy {share:.1%}"
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        axes.text(value + 0.02 * max(heights), row, words, va="center", fontsize=style.TICK, bbox=box)
    axes.set_yticks(range(len(values)), [name.strip(" .,") for name in values])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.35 * max(heights))
    style.describe(
        axes,
        f"Blue: better than the network. Red: worse. Grey: within {_NOISE} of it.",
        "NLL on test images (nats)",
        "",
    )
    return figure


def trained(train: tuple[Tensor, Tensor], epochs: int) -> nn.Module:
    """Three small convolutions, trained by Adam with mini-batches."""
    torch.manual_seed(0)

    def block(i: int, o: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]

    size = train[0].shape[-1] // 8
    network = nn.Sequential(*block(1, 8), *block(8, 12), *block(12, 12), nn.Flatten(), nn.Linear(12 * size**2, 10))
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3, weight_decay=DECAY)
    for _ in range(epochs):
        for batch in torch.randperm(len(train[1])).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(train[0][batch]), train[1][batch]).backward()
            optimizer.step()
    return network.eval()


def mnist() -> tuple[tuple[Tensor, Tensor], ...]:
    """2,000 images to train, 500 to validate and 2,000 to test."""
    from dnn2gp.paper.datasets import load_images

    images = load_images("mnist")
    x, y = images.train_images, images.train_labels
    return (x[:2000], y[:2000]), (x[2000:2500], y[2000:2500]), (images.test_images[:2000], images.test_labels[:2000])


def small_digits() -> tuple[tuple[Tensor, Tensor], ...]:
    """8 × 8 digits that ship with scikit-learn, shuffled because they are sorted by writer."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(x).float().reshape(-1, 1, 8, 8) / 16, torch.from_numpy(y).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    parts = order[:300], order[300:500], order[500:1000]
    return tuple((images[part], labels[part]) for part in parts)


if __name__ == "__main__":
    main()
