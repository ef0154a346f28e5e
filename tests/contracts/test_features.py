"""Every engine of features: each product against the explicit Jacobian. A new engine adds a line to ENGINES."""

from __future__ import annotations

import pytest
import torch

from dnn2gp.features import (
    FactoredJacobian,
    FeatureMap,
    GradientFeatures,
    JacobianFeatures,
    LayerwiseFeatures,
    StackedFeatures,
)
from dnn2gp.features.budget.chunked import form
from dnn2gp.features.knowledge import Knowledge
from dnn2gp.network import Network
from dnn2gp.weights.structures import DensePrecision, DiagonalPrecision

from problems import problem
from reference import brute_force

CASE = problem("categorical", 7, 3)
CHUNKS = {"at once": None, "in chunks": 2}


def _cut(features, chunk):
    """The same features, with at most so many examples at a time."""
    if chunk is not None:
        features.fast_chunk = lambda inputs, num_rows: chunk
    return features


def _jacobian(chunk):
    return _cut(JacobianFeatures(Network(CASE.module, CASE.x), CASE.x), chunk), CASE.x, CASE.parts()[0]


def _looped(chunk):
    features, x, J = _jacobian(chunk)
    known = form(x)
    features.knowledge = Knowledge({("batched", known): False, ("forward mode", known): False})
    return features, x, J


def _gradient(chunk):
    J, r, _ = CASE.parts()
    features, x, _ = _jacobian(chunk)
    pairs = GradientFeatures.pair(x, r)
    return GradientFeatures(features, x), pairs, torch.einsum("nkp,nk->np", J, r).unsqueeze(1)


def _layerwise(chunk):
    return _cut(LayerwiseFeatures(Network(CASE.module, CASE.x), CASE.x), chunk), CASE.x, CASE.parts()[0]


def _layerwise_gradient(chunk):
    J, r, _ = CASE.parts()
    features, x, _ = _layerwise(chunk)
    pairs = GradientFeatures.pair(x, r)
    return GradientFeatures(features, x), pairs, torch.einsum("nkp,nk->np", J, r).unsqueeze(1)


def _stacked(chunk):
    """At the weights and at others: the engine is moved there, and knows the rest already."""
    features, x, J = _layerwise(None)
    other = CASE.weights * 0.5 + 0.1
    rows = brute_force.jacobian(brute_force.with_weights(CASE.module, other), x)
    return _cut(StackedFeatures([features, features.at(other)]), chunk), x, torch.cat([J, rows], 1)


# name: examples at a time → (features, inputs, the explicit N × Q × P rows by brute force)
ENGINES = {
    "torch.func": _jacobian,
    "looped": _looped,
    "gradient": _gradient,
    "layerwise": _layerwise,
    "layerwise gradient": _layerwise_gradient,
    "stacked": _stacked,
}


@pytest.fixture(params=[(e, b) for e in ENGINES for b in CHUNKS], ids=lambda p: f"{p[0]}, {p[1]}")
def engine(request) -> tuple[FeatureMap, object, torch.Tensor]:
    name, chunk = request.param
    return ENGINES[name](CHUNKS[chunk])


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def precision():
    root = randn(CASE.delta.numel(), CASE.delta.numel())
    return DensePrecision(root @ root.T + torch.eye(len(root), dtype=torch.float64))


def test_a_budget_makes_chunks():
    features = JacobianFeatures(Network(CASE.module, CASE.x), CASE.x, memory_budget=3_000)
    assert 1 <= features.chunk(CASE.x) < 7 / 2  # three and more
    assert features.need(CASE.x, 3)(features.chunk(CASE.x)) <= 3_000


def test_outputs_and_factors(engine):
    features, x, J = engine
    outputs, factors = features.outputs_and_factors(x)
    close(factors.rows(), J)
    close(outputs, features.outputs(x))
    expected = CASE.module(CASE.x).detach()
    close(outputs[:, : expected.shape[1]], expected)


def test_rows(engine):
    features, x, J = engine
    close(features.jacobian(x), J)
    assert (features.num_outputs, features.num_weights) == J.shape[1:]


@pytest.mark.parametrize("columns", [1, 9])  # few: autograd products; many: rows
def test_products_with_vectors(engine, columns):
    features, x, J = engine
    v, u = randn(J.shape[2], columns), randn(*J.shape[:2], columns)
    close(features.jvp(x, v), J @ v)
    close(features.vjp(x, u), torch.einsum("nqp,nqs->ps", J, u))


def test_ggn_and_its_diagonal(engine):
    features, x, J = engine
    root = randn(*J.shape[:2], 2)
    ggn = torch.einsum("nqp,nqr,nsr,nso->po", J, root, root, J)
    close(features.ggn(x, root), ggn)
    close(features.ggn_diagonal(x, root), ggn.diagonal())


def test_gradient_moments(engine):
    features, x, J = engine
    u, seen = randn(*J.shape[:2]), []

    def cotangents(outputs, part):
        seen.append((len(outputs), part.stop - part.start))
        return u[part]

    each = torch.einsum("nqp,nq->np", J, u)
    sums, squares = features.gradient_moments(x, cotangents)
    close(sums, each.sum(0))
    close(squares, each.square().sum(0))
    assert all(count == examples for count, examples in seen)


@pytest.mark.parametrize("make", [_jacobian, _looped, _layerwise])
def test_an_engine_at_other_weights_is_a_new_one_there(make, precision):
    features, x, _ = make(None)
    weights = CASE.weights * 0.5 + 0.1
    moved = features.at(weights)
    J = brute_force.jacobian(brute_force.with_weights(CASE.module, weights), x)
    close(moved.jacobian(x), J)
    close(moved.outputs(x), brute_force.outputs(brute_force.with_weights(CASE.module, weights), x))
    close(moved.jvp(x, randn(J.shape[2], 1)), J @ randn(J.shape[2], 1))
    close(features.jacobian(x), CASE.parts()[0])  # the old one stays


@pytest.mark.slow
def test_kernels(engine, precision):
    features, x, J = engine
    few = tuple(leaf[:3] for leaf in x) if isinstance(x, tuple) else x[:3]
    for structure in (precision, DiagonalPrecision(CASE.delta)):
        covariance = torch.linalg.inv(structure.dense())
        full = torch.einsum("nqp,po,mro->nqmr", J, covariance, J)
        close(features.kernel_full(x, structure), full)
        close(features.kernel_full(x, structure, few), full[:, :, :3])
        close(features.kernel_trace(x, structure), torch.einsum("nqmq->nm", full))
        close(features.kernel_trace(few, structure, x), torch.einsum("nqmq->nm", full)[:3])
        close(features.kernel_diagonal(x, structure), torch.einsum("nqmq->nmq", full))
        close(features.kernel_diagonal(few, structure, x), torch.einsum("nqmq->nmq", full)[:3])
        close(features.covariance(x, structure), torch.einsum("nqnr->nqr", full))


def test_kernel_between_two_feature_maps(precision):
    features, x, J = _jacobian(None)
    gradient, pairs, g = _gradient(None)
    expected = torch.einsum("nqp,po,mro->nqmr", J, torch.linalg.inv(precision.dense()), g)
    close(features.kernel_full(x, precision, pairs, gradient), expected)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [None, 20_000])
def test_the_factored_operator(engine, precision, budget):
    """SᵀJV^{½} and its products, kept and not kept."""
    features, x, J = engine
    features.memory_budget = budget
    root = randn(*J.shape[:2], 3)
    rows = (root.mT @ J).flatten(0, 1)
    sites = FactoredJacobian(features, x, root, precision)
    assert sites.kept() or budget is not None
    gram = rows @ torch.linalg.inv(precision.dense()) @ rows.T
    close(sites.gram(), gram)
    cross = J.flatten(0, 1) @ torch.linalg.inv(precision.dense()) @ rows.T
    close(sites.cross(features.white_factors(x, precision)).flatten(0, 1), cross)
    blocks = torch.stack([gram[3 * i : 3 * i + 3, 3 * i : 3 * i + 3] for i in range(len(J))])
    close(sites.diagonal_blocks(), blocks)
    v, u, phi = randn(J.shape[2], 2), randn(len(rows), 2), precision.whiten(rows)
    close(sites.push(v), phi @ v)
    close(sites.pull(u), phi.T @ u)


def test_residual_curvature_is_the_rest_of_the_hessian():
    """Eq. (6): Hessian = JᵀΛJ + Σ ∇²f·r."""
    J, r, Lam = CASE.parts()
    features, x, _ = _jacobian(None)
    hessian = torch.func.hessian(CASE.total_loss)(CASE.weights) - torch.diag(CASE.delta)
    rest = hessian - torch.einsum("nkp,nkl,nlq->pq", J, Lam, J)
    close(features.residual_curvature(x, r, torch.eye(len(rest), dtype=torch.float64)), rest)


def test_outputs_are_those_of_the_network():
    features, x, _ = _jacobian(None)
    close(features.outputs(x), brute_force.outputs(CASE.module, x))
