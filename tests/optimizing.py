"""Optimizers at work, for the tests: on a small problem, and on networks with normalisation and attention."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from dnn2gp import VOGN, GaussianLikelihood
from dnn2gp.optim.optimizer import OnlineNewtonOptimizer

from problems import problem


def fresh(kind=VOGN, case=None, **settings) -> tuple[OnlineNewtonOptimizer, nn.Module, Tensor, Tensor]:
    case = case or problem("categorical", examples=8, outputs=3)
    module = copy.deepcopy(case.module)
    own = {"lr": 0.05, "prior_precision": case.delta, "initial_precision": 50.0, **settings}
    return kind(module, case.likelihood, len(case.x), **own), module, case.x, case.y


class Normalised(nn.Module):
    """Convolution, BatchNorm, embedding, LayerNorm and attention in one small network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.places = nn.Embedding(5, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.layer_norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.norm(self.conv(x)).relu()).mT + self.places(torch.arange(x.shape[2]))
        return self.head(self.layer_norm(h + self.attention(h, h, h, need_weights=False)[0]).mean(1))


def normalised() -> tuple[Normalised, Tensor, Tensor]:
    torch.manual_seed(0)
    return Normalised().double(), torch.randn(12, 2, 5).double() + 2, torch.randint(3, (12,))


def normalised_1d(kind=VOGN, **settings):
    """A network with BatchNorm on 2-D inputs, in train mode, after a few steps."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1)).double().train()
    x, y = torch.randn(8, 3).double() + 1, torch.randn(8, 1).double()
    optimizer = kind(module, GaussianLikelihood(0.5), 8, lr=0.1, **settings)
    for _ in range(3):
        optimizer.step(x, y)
    return optimizer, module, x, y
