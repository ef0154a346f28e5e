"""Every structure against its dense twin: a new one adds a line to FACTORIES and inherits every check."""

from __future__ import annotations

import pytest
import torch

from dnn2gp.errors import NotPositiveDefiniteError
from dnn2gp.features import JacobianFeatures
from dnn2gp.network import Network
from dnn2gp.structures import Dense, Diagonal, Structure

from problems import problem
from reference import brute_force

SIZE = 7


def _spd() -> torch.Tensor:
    root = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return root @ root.T + torch.eye(SIZE, dtype=torch.float64)


# name: (a structure of 7 weights, the dense precision that it stands for)
FACTORIES = {
    "dense": lambda: (Dense(_spd()), _spd()),
    "diagonal": lambda: (Diagonal(_spd().diagonal()), torch.diag(_spd().diagonal())),
}


@pytest.fixture(params=list(FACTORIES))
def pair(request):
    return FACTORIES[request.param]()


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_every_structure_has_a_factory():
    assert set(FACTORIES) == {name for name, kind in Structure.kinds.items() if kind.__module__.startswith("dnn2gp.")}


def test_products(pair):
    structure, matrix = pair
    v = randn(SIZE, 3)
    close(structure.dense(), matrix)
    close(structure.matmul(v), matrix @ v)
    close(structure.solve(v), torch.linalg.inv(matrix) @ v)
    close(structure.covariance(), torch.linalg.inv(matrix))
    assert structure.size == SIZE


def test_diagonals_and_determinant(pair):
    structure, matrix = pair
    close(structure.diagonal(), matrix.diagonal())
    close(structure.inverse_diagonal(), torch.linalg.inv(matrix).diagonal())
    close(structure.log_det(), torch.logdet(matrix))


def test_whiten_is_a_root_of_the_covariance(pair):
    structure, matrix = pair
    J, other, noise = randn(2, 3, SIZE), randn(4, SIZE) + 1, randn(SIZE, 5)
    white = structure.whiten(J)
    assert white.shape == J.shape
    expected = torch.einsum("nkp,pq,mq->nkm", J, torch.linalg.inv(matrix), other)
    close(white @ structure.whiten(other).T, expected)
    close(structure.whiten(other) @ noise, other @ structure.unwhiten(noise))
    root = structure.unwhiten(torch.eye(SIZE, dtype=torch.float64))
    close(root @ root.T, torch.linalg.inv(matrix))


def test_state_and_float64(pair):
    structure, matrix = pair
    close(type(structure).from_state(structure.state()).dense(), matrix)
    assert structure.double().whiten(randn(2, SIZE).float()).dtype == torch.float64


@pytest.mark.parametrize("name", list(FACTORIES))
def test_from_ggn_is_the_dense_posterior_seen_through_the_structure(name):
    """A structure keeps some entries of V⁻¹ + JᵀΛJ and drops the rest: what it keeps must be right."""
    case = problem("categorical", 5)
    network = Network(case.module, case.x)
    features = JacobianFeatures(network, case.x)
    root = case.likelihood.noise_precision_root(features.outputs(case.x), case.y)
    J, _, Lam = case.parts()
    matrix = torch.einsum("nkp,nkl,nlq->pq", J, Lam, J) + torch.diag(case.delta)
    kind = Structure.kinds[name]
    found = kind.from_ggn(Diagonal(case.delta), features, case.x, root).dense()
    kept = found != 0
    torch.testing.assert_close(found[kept], matrix[kept], rtol=1e-10, atol=1e-12)
    assert kept.diagonal().all()
    assert bool(kept.all()) is kind.exact


def test_dense_says_how_indefinite_it_is():
    matrix = torch.diag(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
    with pytest.raises(NotPositiveDefiniteError, match=r"3 × 3.*from -2 to 3.*Raise the prior precision"):
        Dense(matrix).solve(torch.ones(3, 1, dtype=torch.float64))


def test_diagonal_refuses_what_is_not_positive():
    with pytest.raises(NotPositiveDefiniteError, match="smallest entry is -1"):
        Diagonal(torch.tensor([1.0, -1.0]))


def test_covariance_of_brute_force():
    """One oracle from elsewhere: the posterior covariance of tests/reference."""
    case = problem("gaussian", 5)
    J, r, Lam = case.parts()
    _, covariance = brute_force.weight_posterior(J, r, Lam, case.weights, case.delta)
    features = JacobianFeatures(Network(case.module, case.x), case.x)
    root = torch.linalg.cholesky(Lam)
    close(Dense.from_ggn(Diagonal(case.delta), features, case.x, root).covariance(), covariance)
