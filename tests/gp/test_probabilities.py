"""A softmax or sigmoid at the end of a network, where the likelihood expects logits."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from dnn2gp import BernoulliLikelihood, CategoricalLikelihood, convert
from dnn2gp.support.errors import NotAMinimumWarning, ProbabilitiesWarning

X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
CASES = {
    "softmax": (nn.Softmax(1), CategoricalLikelihood(), torch.arange(30) % 3, True),
    "sigmoid": (nn.Sigmoid(), BernoulliLikelihood(), torch.eye(3)[torch.arange(30) % 3], True),
    "logits": (nn.Identity(), CategoricalLikelihood(), torch.arange(30) % 3, False),
    "log-softmax": (nn.LogSoftmax(1), CategoricalLikelihood(), torch.arange(30) % 3, False),
    "binary logits": (nn.Identity(), BernoulliLikelihood(), torch.eye(3)[torch.arange(30) % 3], False),
}


@pytest.mark.parametrize("name", CASES)
def test_probabilities_are_noticed(name):
    last, likelihood, targets, noticed = CASES[name]
    torch.manual_seed(0)
    layer = nn.Linear(2, 3)
    nn.init.normal_(layer.weight, std=3.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", NotAMinimumWarning)
        convert(nn.Sequential(layer, last), (X, targets), likelihood, 1.0)
    assert [issubclass(w.category, ProbabilitiesWarning) for w in caught].count(True) == noticed
