"""Metrics of predicted class probabilities: accuracy, negative log likelihood, expected calibration error."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dnn2gp.support.errors import InputError


def accuracy(probabilities: Float[Tensor, "N K"], labels: Int[Tensor, " N"]) -> float:
    """The share of examples whose most probable class is the true one."""
    check_predictions(probabilities, labels)
    return (probabilities.argmax(-1) == labels).double().mean().item()


def nll(probabilities: Float[Tensor, "N K"], labels: Int[Tensor, " N"]) -> float:
    """−(1/N) Σ_n log p_n(y_n), in nats; infinite if a true class has probability 0."""
    check_predictions(probabilities, labels)
    of_label = probabilities.double().gather(-1, labels.unsqueeze(-1))
    if bool((of_label < 0).any()):
        raise InputError(
            f"probabilities: expected numbers ≥ 0; got {of_label.min().item():.3g}. Linear approximations such as "
            "Predictive.mean can leave [0, 1]: use Predictive.delta(), probit() or monte_carlo() instead."
        )
    return -of_label.log().mean().item()


def ece(probabilities: Float[Tensor, "N K"], labels: Int[Tensor, " N"], num_bins: int = 15) -> float:
    """The expected calibration error: confidence against accuracy, in equal bins ((b−1)/B, b/B] of max_k p_k:

    Σ_b (n_b / N) |accuracy_b − confidence_b|.
    """
    check_predictions(probabilities, labels)
    if num_bins < 1:
        raise InputError(f"num_bins: expected at least 1; got {num_bins}.")
    confidence, prediction = probabilities.double().max(-1)
    edges = torch.linspace(0, 1, num_bins + 1, dtype=confidence.dtype, device=confidence.device)
    bins = torch.bucketize(confidence, edges[1:-1])
    surplus = (prediction == labels).double() - confidence
    per_bin = torch.zeros(num_bins, dtype=surplus.dtype, device=surplus.device).index_add(0, bins, surplus)
    return (per_bin.abs().sum() / len(labels)).item()


def check_predictions(probabilities: Tensor, labels: Tensor) -> None:
    """Raise an `InputError` unless there is one row of probabilities per label, and at least one label."""
    if probabilities.ndim != 2 or labels.ndim != 1 or len(probabilities) != len(labels) or len(labels) == 0:
        raise InputError(
            "probabilities, labels: expected shapes (N, K) and (N,) for the same N ≥ 1 examples; got "
            f"{tuple(probabilities.shape)} and {tuple(labels.shape)}."
        )
