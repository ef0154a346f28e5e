"""Checkpointed layers are computed again in the backward pass, where they must find what they found in the forward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from dnn2gp.features import JacobianFeatures, LayerwiseFeatures
from dnn2gp.network import Network

from reference import brute_force


class Attention(nn.Module):
    """Attention in one of torch's forms, inside a checkpoint."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 12), nn.Linear(16, 2)
        self.encoder = nn.TransformerEncoderLayer(4, 2, 5, batch_first=True) if form == "encoder" else None

    def middle(self, x):
        if self.encoder is not None:
            return self.encoder(x)
        return F.scaled_dot_product_attention(*(part.unsqueeze(1) for part in self.inner(x).chunk(3, -1)))

    def forward(self, x):
        return self.out(checkpoint(self.middle, x, use_reentrant=False).flatten(1))


@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.FallbackWarning")
@pytest.mark.parametrize("engine", [LayerwiseFeatures, JacobianFeatures])
@pytest.mark.parametrize("form", ["encoder", "function"])
def test_jacobian(engine, form):
    torch.manual_seed(0)
    module, x = Attention(form).double(), torch.randn(3, 4, 4, dtype=torch.float64)
    found = engine(Network(module.eval(), x), x).jacobian(x)
    torch.testing.assert_close(found, brute_force.jacobian(module, x), rtol=1e-9, atol=1e-11)
