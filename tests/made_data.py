"""A data folder with everything the experiments read, made up: quick, and the same everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def make_data(folder: Path) -> Path:
    """scikit-learn's digits as MNIST, turned as Fashion-MNIST and coloured as CIFAR-10; random wine; a noisy sine."""
    pixels, labels = load_digits(return_X_y=True)
    digits = np.kron(pixels.reshape(-1, 8, 8) * 15.9, np.ones((3, 3))).astype(np.uint8)
    labels = labels.astype(np.uint8)
    _save(folder / "mnist.npz", np.pad(digits, ((0, 0), (2, 2), (2, 2))), labels)
    _save(folder / "fashion_mnist.npz", np.pad(255 - digits.swapaxes(1, 2), ((0, 0), (2, 2), (2, 2))), labels)
    large = np.pad(digits, ((0, 0), (4, 4), (4, 4)))
    _save(folder / "cifar10.npz", np.stack([large, large // 2, 255 - large], -1), labels)
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(1599, 12))
    text = ";".join(f"c{column}" for column in range(12)) + "\n"
    (folder / "winequality-red.csv").write_text(text + "\n".join(";".join(f"{v:.4f}" for v in row) for row in rows))
    (folder / "snelson").mkdir()
    x = generator.uniform(0, 6, size=200)
    for name, values in (("train_inputs", x), ("train_outputs", np.sin(2 * x) + 0.3 * generator.normal(size=200))):
        (folder / "snelson" / name).write_text("\n".join(f"{value:.7f}" for value in values))
    return folder


def _save(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    np.savez(path, x_train=images[:1300], y_train=labels[:1300], x_test=images[1300:], y_test=labels[1300:])
