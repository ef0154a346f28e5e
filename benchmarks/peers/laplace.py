"""laplace-torch: its diagonal posterior, by its default backend (CurvlinopsGGN) and by BackPACK's."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from laplace import DiagLaplace
from laplace.curvature import BackPackGGN, CurvlinopsGGN
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

BACKENDS = {"default": CurvlinopsGGN, "BackPACK": BackPackGGN}


def covariance(
    module: nn.Module, training: tuple[Tensor, Tensor], inputs: Tensor, batch: int, backend: str
) -> Callable[[], Tensor]:
    """J Σ Jᵀ of each test input, N × K × K, for δ = 1; fitted beforehand."""
    posterior = DiagLaplace(deepcopy(module), "classification", prior_precision=1.0, backend=BACKENDS[backend])
    posterior.fit(DataLoader(TensorDataset(*training), batch_size=8))

    def run() -> Tensor:
        parts = []
        for chunk in inputs.split(batch):
            jacobians, _ = posterior.backend.jacobians(chunk)
            parts.append(posterior.functional_variance(jacobians))
        return torch.cat(parts).detach()

    return run


def ggn_diagonal(module: nn.Module, inputs: Tensor, labels: Tensor, batch: int) -> Callable[[], Tensor]:
    """diag(Jᵀ Λ J) by the default backend."""
    backend = CurvlinopsGGN(deepcopy(module), "classification")

    def run() -> Tensor:
        parts = zip(inputs.split(batch), labels.split(batch), strict=True)
        return torch.stack([backend.diag(x, y)[1].detach() for x, y in parts]).sum(0)

    return run
