"""curvlinops: the GGN as a linear operator.

It has no exact diagonal of its own (its estimators are random). Two ways to have one from its operators: a product with
a unit vector for each weight, or the transposed Jacobian of each example applied to the columns of a root of Λ.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from curvlinops import GGNLinearOperator, TransposedJacobianLinearOperator
from torch import Tensor, nn


def ggn_diagonal_entries(
    module: nn.Module, inputs: Tensor, labels: Tensor, entries: Tensor, batch: int
) -> Callable[[], Tensor]:
    """Some entries of diag(Jᵀ Λ J): eᵢᵀ G eᵢ for softmax cross-entropy, summed over batches."""
    data = list(zip(inputs.split(batch), labels.split(batch), strict=True))
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    operator = GGNLinearOperator(module, nn.CrossEntropyLoss(reduction="sum"), weights, data, check_deterministic=False)
    units = torch.zeros(operator.shape[0], len(entries), dtype=inputs.dtype)
    units[entries, torch.arange(len(entries))] = 1

    def run() -> Tensor:
        return (operator @ units)[entries, torch.arange(len(entries))]

    return run


def ggn_diagonal(module: nn.Module, inputs: Tensor, labels: Tensor) -> Callable[[], Tensor]:
    """diag(Jᵀ Λ J) = Σᵢ (Jᵢᵀ Sᵢ)² summed over columns, with Λ = diag(p) − p pᵀ = S Sᵀ, S = diag(√p) − p √pᵀ."""
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    operators = [
        TransposedJacobianLinearOperator(
            module, weights, [(x.unsqueeze(0), y.unsqueeze(0))], check_deterministic=False, num_data=1
        )
        for x, y in zip(inputs, labels, strict=True)
    ]

    def run() -> Tensor:
        with torch.no_grad():
            p = torch.softmax(module(inputs), -1)
        roots = torch.diag_embed(p.sqrt()) - p.unsqueeze(2) * p.sqrt().unsqueeze(1)
        total = torch.zeros(sum(weight.numel() for weight in weights), dtype=inputs.dtype)
        for operator, root in zip(operators, roots, strict=True):
            total += (operator @ root).square().sum(1)
        return total

    return run
