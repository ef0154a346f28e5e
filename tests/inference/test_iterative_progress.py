"""What the progress bars of iterative inference show."""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from dnn2gp import GaussianLikelihood, Iterative, convert
from dnn2gp.support import progress


class Recorded:
    """A display that keeps what each bar says."""

    def __init__(self):
        self.said = []

    @contextmanager
    def task(self, description, total, done=0):
        self.said.append(description)
        yield self.said.append


@pytest.fixture
def said():
    display = Recorded()
    token = progress._active.set(display)
    yield display.said
    progress._active.reset(token)


def test_bars_show_passes_the_residual_and_the_error_so_far(said):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 4, generator=generator, dtype=torch.float64)
    y = x[:, :2].sin() + 0.3 * torch.randn(80, 2, generator=generator, dtype=torch.float64)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 2)).double()
    method = Iterative(rank=32, samples=24, tolerance=1e-6)
    gp = convert(network, (x, y), GaussianLikelihood(0.3), 1.0, inference=method)
    words = "\n".join(said)
    assert re.search(r"basis of the curvature: pass 8, 32 of 32 columns, residual 0\.\d+", words)
    assert re.search(r"first 16 samples: pass \d+, residual 0\.\d+", words)
    error = re.search(r"8 more samples \(variances ± (\d+\.\d)% so far\): pass \d+, residual 0\.\d+", words)
    assert error is not None
    assert 0 < float(error[1]) < 100
    passes = [int(number) for number in re.findall(r"samples.*: pass (\d+)", words)]
    assert passes == sorted(passes)
    assert max(passes) <= gp.inference.report().passes
    said.clear()
    gp.condition((x[:3], y[:3]))
    assert re.search(r"samples given more data: pass 1, residual", "\n".join(said))
