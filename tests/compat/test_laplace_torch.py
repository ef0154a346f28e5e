"""The evidence against laplace-torch's full Laplace, in an environment that has it (`make test-compat`)."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dnn2gp import CategoricalLikelihood, GaussianLikelihood, convert
from dnn2gp.inference import GaussNewtonStep

laplace = pytest.importorskip("laplace", reason="laplace-torch is in the environment of the benchmarks only")

pytestmark = pytest.mark.filterwarnings("ignore")
DELTA, SIGMA = 0.8, 0.35


def problem(kind, examples, outputs):
    """N·K below and above P, softmax and regression; weights that are no minimum."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs)).double()
    x = torch.randn(examples, 3, dtype=torch.float64)
    y = torch.randint(outputs, (examples,)) if kind == "classification" else torch.randn(examples, outputs).double()
    return network, x, y


def theirs(network, x, y, kind, delta=DELTA, sigma=SIGMA):
    # Double throughout: laplace-torch makes some of its tensors in the default dtype.
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = laplace.Laplace(
                network,
                kind,
                subset_of_weights="all",
                hessian_structure="full",
                prior_precision=delta,
                **({"sigma_noise": sigma} if kind == "regression" else {}),
            )
            found.fit(DataLoader(TensorDataset(x, y), batch_size=len(x)))
            return found.log_marginal_likelihood().item()
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("examples", "outputs"), [(6, 1), (6, 3), (40, 1), (40, 3)])
@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_the_laplace_evidence_of_all_weights(kind, examples, outputs):
    if kind == "classification" and outputs == 1:
        pytest.skip("softmax needs two outputs")
    network, x, y = problem(kind, examples, outputs)
    likelihood = GaussianLikelihood(SIGMA) if kind == "regression" else CategoricalLikelihood()
    gp = convert(network, (x, y), likelihood, DELTA, mean=GaussNewtonStep())
    expected = theirs(network, x, y, kind)
    assert gp.evidence().laplace == pytest.approx(expected, rel=1e-9)
    assert gp.evidence_function(at_weights=True)(1.0).item() == pytest.approx(expected, rel=1e-9)
    assert gp.evidence_function(per_layer=True, at_weights=True)(1.0).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("examples", [6, 40])
@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_at_other_delta_and_sigma_and_per_layer(kind, examples):
    network, x, y = problem(kind, examples, 3)
    likelihood = GaussianLikelihood(SIGMA) if kind == "regression" else CategoricalLikelihood()
    gp = convert(network, (x, y), likelihood, DELTA, mean=GaussNewtonStep())
    scale = 2.5 if kind == "regression" else 1.0
    expected = theirs(network, x, y, kind, delta=3 * DELTA, sigma=scale * SIGMA)
    found = gp.evidence_function(at_weights=True)(3.0, scale)
    assert found.item() == pytest.approx(expected, rel=1e-9)
    layers = torch.tensor([3.0, 0.2], dtype=torch.float64)
    each = DELTA * layers.repeat_interleave(2)  # laplace-torch has one for each tensor
    expected = theirs(network, x, y, kind, delta=each, sigma=scale * SIGMA)
    found = gp.evidence_function(per_layer=True, at_weights=True)(layers, scale)
    assert found.item() == pytest.approx(expected, rel=1e-9)
