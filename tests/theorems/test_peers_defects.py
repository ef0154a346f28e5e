"""Defects found in other software, each a test by name of what dnn2gp does instead."""

from __future__ import annotations

import json
import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dnn2gp import CategoricalLikelihood, FunctionSpace, GaussianLikelihood, WeightSpace, convert, load, save
from dnn2gp.inference import GaussNewtonStep

from problems import problem
from reference import brute_force
from zoo import specimen

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
SPACES = pytest.mark.parametrize("space", [WeightSpace(), FunctionSpace()], ids=repr)


@SPACES
def test_defect_1_off_diagonal_of_the_noise_precision_is_kept(space):
    """Softmax couples the classes: the logit variances are those of the full Λ, and not those of diag(Λ)."""
    case = problem("categorical", 10, 4)
    J, _, Lam = case.parts()
    J_test = brute_force.jacobian(case.module, case.x_test)

    def logit_variances(noise_precision):
        precision = torch.einsum("nkp,nkl,nlq->pq", J, noise_precision, J) + torch.diag(case.delta)
        return torch.einsum("nkp,pq,nkq->nk", J_test, torch.linalg.inv(precision), J_test)

    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta, inference=space, mean=GaussNewtonStep())
    found = gp.predict(case.x_test).latent_covariance.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(found, logit_variances(Lam), rtol=1e-8, atol=1e-10)
    dropped = logit_variances(torch.diag_embed(Lam.diagonal(dim1=1, dim2=2)))
    assert (dropped / found).min() < 0.9  # dropping the off-diagonal would be seen


@pytest.mark.slow
@SPACES
def test_defect_2_evidence_counts_the_data_once(space):
    """The evidence is log N(ỹ | 0, K + σ²I), and the best δ that it names is the one of that density."""
    case = problem("gaussian", 20, 1, 4)
    J = brute_force.jacobian(case.module, case.x)[:, 0]
    y_tilde = J @ case.weights - brute_force.outputs(case.module, case.x)[:, 0] + case.y[:, 0]

    def exact(log_delta):
        covariance = J @ J.T / math.exp(log_delta) + 0.09 * torch.eye(20, dtype=torch.float64)
        return multivariate_normal(torch.zeros(20).numpy(), covariance.numpy()).logpdf(y_tilde.numpy())

    def found(log_delta):
        data = (case.x, case.y)
        return convert(case.module, data, case.likelihood, math.exp(log_delta), inference=space).evidence().value

    for log_delta in (-2.0, 0.0, 2.0):
        assert found(log_delta) == pytest.approx(exact(log_delta), rel=1e-9)
    best = [minimize_scalar(lambda t, f=f: -f(t), bounds=(-6, 6), method="bounded").x for f in (found, exact)]
    assert best[0] == pytest.approx(best[1], abs=1e-4)


@SPACES
def test_defect_4_a_point_without_noise_precision_says_nothing(space):
    """An example that is fitted with certainty (Λ = 0) leaves the posterior as it was, whatever its Jacobian."""
    case = problem("categorical", 6, 3)
    module = case.module
    certain = torch.tensor([[300.0, -200.0]], dtype=torch.float64)  # the tanh units saturate
    with torch.no_grad():
        module[2].weight.mul_(1e4)
    logits = brute_force.outputs(module, certain)
    y = logits.argmax(1)
    assert torch.softmax(logits, 1).max() == 1.0
    base = convert(module, (case.x, case.y), case.likelihood, case.delta, inference=space, mean=GaussNewtonStep())
    more = base.condition((certain, y))
    torch.testing.assert_close(more.covariance(case.x_test), base.covariance(case.x_test), rtol=1e-9, atol=0)


@SPACES
def test_defect_4_the_prior_does_not_change_with_the_number_of_data(space):
    """The GP of a subset has the same prior kernel as that of all data: it is no scaled version of it."""
    case = problem("gaussian", 12)
    gps = [
        convert(case.module, (case.x[:n], case.y[:n]), case.likelihood, case.delta, inference=space) for n in (3, 12)
    ]
    J_test = brute_force.jacobian(case.module, case.x_test)
    kernel = torch.einsum("nkp,p,mlp->nkml", J_test, 1 / case.delta, J_test)
    for gp in gps:
        torch.testing.assert_close(gp.kernel.full(case.x_test), kernel, rtol=1e-12, atol=1e-13)


@SPACES
def test_defect_5_predictions_factorise_nothing_and_leave_the_training_data_alone(space, monkeypatch):
    case = problem("categorical", 9, 3)
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta, inference=space)
    first = gp.predict(case.x_test)
    seen = []
    forward = gp.network.__class__.__call__

    def watched(network, weights, inputs):
        seen.append(inputs.shape)
        return forward(network, weights, inputs)

    def forbidden(*_, **__):
        raise AssertionError("a prediction factorised a matrix")

    monkeypatch.setattr(gp.network.__class__, "__call__", watched)
    monkeypatch.setattr(torch.linalg, "cholesky_ex", forbidden)
    monkeypatch.setattr(torch.linalg, "cholesky", forbidden)
    second = gp.predict(case.x_test)
    torch.testing.assert_close(first.latent_covariance, second.latent_covariance, rtol=0, atol=0)
    assert seen
    assert all(shape[0] in (1, 4) for shape in seen)  # the 4 test inputs, or one of them under vmap; never the 9


@SPACES
@pytest.mark.parametrize("name", ["frozen weights", "embedding, dict input"])
def test_defect_6_frozen_weights_and_dict_inputs_work(name, space):
    case = specimen(name)
    likelihood = case.entry.likelihood
    gp = convert(case.module, (case.inputs, case.targets), likelihood, 1.0, inference=space)
    J = brute_force.jacobian(case.module, case.test_inputs)
    assert gp.network.num_weights == J.shape[2]
    torch.testing.assert_close(
        gp.kernel.full(case.test_inputs), torch.einsum("nkp,mlp->nkml", J, J), rtol=1e-11, atol=1e-12
    )
    assert gp.predict(case.test_inputs).mean.shape == {"frozen weights": (3, 2)}.get(name, (3,))


@SPACES
def test_defect_6_a_layerwise_prior_works(space):
    case = problem("gaussian", 8)
    layerwise = {"0": 0.5, "2": 4.0}
    delta = torch.cat([torch.full((9,), 0.5), torch.full((8,), 4.0)]).double()
    J, r, Lam = case.parts()
    mean, covariance = brute_force.weight_posterior(J, r, Lam, case.weights, delta)
    for prior in (layerwise, torch.tensor([0.5, 4.0], dtype=torch.float64), delta):
        gp = convert(case.module, (case.x, case.y), case.likelihood, prior, inference=space)
        torch.testing.assert_close(gp.inference.mean, mean, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(gp.inference.weight_variances(), covariance.diagonal(), rtol=1e-8, atol=1e-10)


@SPACES
def test_defect_6_the_joint_covariance_works_for_independent_outputs(space):
    """Two networks side by side: the joint covariance exists, and is zero between the two outputs."""

    class Apart(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x):
            return torch.cat([self.left(x), self.right(x)], 1)

    module = Apart().double()
    x, y = torch.randn(5, 2, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    joint = convert(module, (x, y), GaussianLikelihood(0.3), 1.0, inference=space).covariance(x)
    design = torch.cat([x, torch.ones(5, 1, dtype=torch.float64)], 1)
    block = design @ torch.linalg.inv(design.T @ design / 0.09 + torch.eye(3, dtype=torch.float64)) @ design.T
    torch.testing.assert_close(joint[:, 0, :, 0], block, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(joint[:, 0, :, 1], torch.zeros(5, 5, dtype=torch.float64), rtol=0, atol=1e-15)


@SPACES
def test_defect_6_a_second_conversion_changes_nothing(space):
    case = problem("categorical", 8, 3)
    first, second = (
        convert(case.module, (case.x, case.y), case.likelihood, case.delta, inference=space) for _ in range(2)
    )
    assert first.evidence() == second.evidence()
    assert torch.equal(first.covariance(case.x_test), second.covariance(case.x_test))


@SPACES
def test_defect_7_the_state_holds_no_loader_and_no_pickle(space, tmp_path):
    """A GP made from a DataLoader is saved as tensors and JSON; a network of its class is all that loading needs."""
    case = problem("categorical", 8, 3)
    loader = DataLoader(TensorDataset(case.x, case.y), batch_size=3)
    gp = convert(case.module, loader, CategoricalLikelihood(), case.delta, inference=space)
    path = tmp_path / "gp.safetensors"
    save(gp, path)
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    entries = json.loads(raw[8:start])
    json.loads(entries.pop("__metadata__")["dnn2gp"])
    assert start + max(entry["data_offsets"][1] for entry in entries.values()) == len(raw)  # and there is nothing else
    fresh = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3))
    again = load(path, fresh)
    assert torch.equal(again.covariance(case.x_test), gp.covariance(case.x_test))
    assert again.evidence() == gp.evidence()
