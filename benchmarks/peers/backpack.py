"""BackPACK: the exact GGN diagonal by its second-order extension."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from backpack import backpack, extend
from backpack.extensions import DiagGGNExact
from torch import Tensor, nn


def ggn_diagonal(module: nn.Module, inputs: Tensor, labels: Tensor, batch: int) -> Callable[[], Tensor]:
    """diag(Jᵀ Λ J) of a softmax likelihood, summed over batches; the module is copied and extended beforehand."""
    network, loss = extend(deepcopy(module)), extend(nn.CrossEntropyLoss(reduction="sum"))
    weights = list(network.parameters())

    def run() -> Tensor:
        total = torch.zeros(sum(weight.numel() for weight in weights), dtype=inputs.dtype)
        for start in range(0, len(inputs), batch):
            network.zero_grad()
            value = loss(network(inputs[start : start + batch]), labels[start : start + batch])
            with backpack(DiagGGNExact()):
                value.backward()
            total += torch.cat([weight.diag_ggn_exact.flatten() for weight in weights])
        return total

    return run
