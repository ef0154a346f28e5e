"""Every structure and its precision against a dense twin: a new one adds a line to FACTORIES to inherit all checks."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch

from dnn2gp.features import KroneckerFactors, LayerwiseFeatures
from dnn2gp.network import Network
from dnn2gp.support.errors import NotPositiveDefiniteError
from dnn2gp.weights.structures import (
    BlockDiagonalPrecision,
    Dense,
    DensePrecision,
    DiagonalPrecision,
    KroneckerPrecision,
    Structure,
)
from dnn2gp.weights.structures.kronecker import KroneckerBlock

from problems import problem
from reference import brute_force

SIZE = 7


def _spd() -> torch.Tensor:
    root = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return root @ root.T + torch.eye(SIZE, dtype=torch.float64)


def _block_diagonal():
    """Two layers, the first of which lies in two ranges of the weights."""
    matrix, mask = _spd(), torch.zeros(SIZE, SIZE, dtype=torch.float64)
    layers = [(slice(0, 2), slice(5, 7)), (slice(2, 5),)]
    blocks = []
    for parts in layers:
        index = torch.cat([torch.arange(p.start, p.stop) for p in parts])
        mask[index[:, None], index] = 1
        blocks.append(DensePrecision(matrix[index[:, None], index]))
    return BlockDiagonalPrecision(layers, blocks), matrix * mask


def _kronecker():
    """A layer of 2 outputs and 1 input with a bias (weights 0–1, bias 5–6), and a dense block of three weights."""
    spd = _spd()
    A, G, H, delta = spd[:2, :2], spd[2:4, 2:4], spd[4:, 4:], torch.tensor(0.7, dtype=torch.float64)
    layer = KroneckerFactors((slice(0, 2), slice(5, 7)), A, G, bias=True)
    other = KroneckerFactors((slice(2, 5),), torch.ones(1, dtype=torch.float64), H)
    matrix = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    places = {(o, i): [[0, 5], [1, 6]][o][i] for o in range(2) for i in range(2)}
    for (o, i), p in places.items():
        for (q, j), r in places.items():
            matrix[p, r] = G[o, q] * A[i, j]
    matrix[2:5, 2:5] = H
    matrix += 0.7 * torch.eye(SIZE, dtype=torch.float64)
    return KroneckerPrecision([KroneckerBlock.of(layer, delta), KroneckerBlock.of(other, delta)]), matrix


# name: (a precision of 7 weights, the dense matrix that it stands for)
FACTORIES = {
    "dense": lambda: (DensePrecision(_spd()), _spd()),
    "diagonal": lambda: (DiagonalPrecision(_spd().diagonal()), torch.diag(_spd().diagonal())),
    "block diagonal": _block_diagonal,
    "kronecker": _kronecker,
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


@pytest.mark.parametrize("name", FACTORIES)
def test_a_choice_is_a_frozen_value(name):
    structure = FACTORIES[name]()[0].structure
    assert structure.name == name
    assert structure == Structure.kinds[name]()
    assert hash(structure) == hash(Structure.kinds[name]())
    assert eval(repr(structure), {type(structure).__name__: type(structure)}) == structure
    assert Structure.decoded(structure.encoded()) == structure
    with pytest.raises(FrozenInstanceError):
        structure.anything = 1


def test_products(pair):
    precision, matrix = pair
    v = randn(SIZE, 3)
    close(precision.dense(), matrix)
    close(precision.matmul(v), matrix @ v)
    close(precision.solve(v), torch.linalg.inv(matrix) @ v)
    close(precision.covariance(), torch.linalg.inv(matrix))
    assert precision.size == SIZE


def test_diagonals_and_determinant(pair):
    precision, matrix = pair
    close(precision.diagonal(), matrix.diagonal())
    close(precision.inverse_diagonal(), torch.linalg.inv(matrix).diagonal())
    close(precision.log_det(), torch.logdet(matrix))


def test_whiten_is_a_root_of_the_covariance(pair):
    precision, matrix = pair
    J, other, noise = randn(2, 3, SIZE), randn(4, SIZE) + 1, randn(SIZE, 5)
    white = precision.whiten(J)
    assert white.shape == J.shape
    expected = torch.einsum("nkp,pq,mq->nkm", J, torch.linalg.inv(matrix), other)
    close(white @ precision.whiten(other).T, expected)
    close(precision.whiten(other) @ noise, other @ precision.unwhiten(noise))
    root = precision.unwhiten(torch.eye(SIZE, dtype=torch.float64))
    close(root @ root.T, torch.linalg.inv(matrix))


def test_state_and_float64(pair):
    precision, matrix = pair
    close(precision.structure.restored(precision.state()).dense(), matrix)
    assert precision.double().whiten(randn(2, SIZE).float()).dtype == torch.float64


@pytest.mark.parametrize("name", [name for name in FACTORIES if name != "kronecker"])
def test_posterior_precision_is_the_dense_posterior_seen_through_the_structure(name):
    """A structure keeps some entries of V⁻¹ + JᵀΛJ and drops the rest: what it keeps must be right."""
    case = problem("categorical", 5)
    network = Network(case.module, case.x)
    features = LayerwiseFeatures(network, case.x)
    root = case.likelihood.noise_precision_root(features.outputs(case.x), case.y)
    J, _, Lam = case.parts()
    matrix = torch.einsum("nkp,nkl,nlq->pq", J, Lam, J) + torch.diag(case.delta)
    structure = Structure.kinds[name]()
    found = structure.posterior_precision(DiagonalPrecision(case.delta), features, case.x, root).dense()
    kept = found != 0
    torch.testing.assert_close(found[kept], matrix[kept], rtol=1e-10, atol=1e-12)
    assert kept.diagonal().all()
    assert bool(kept.all()) is structure.exact


def test_dense_says_how_indefinite_it_is():
    matrix = torch.diag(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
    with pytest.raises(NotPositiveDefiniteError, match=r"3 × 3.*from -2 to 3.*Raise the prior precision"):
        DensePrecision(matrix).solve(torch.ones(3, 1, dtype=torch.float64))


def test_diagonal_refuses_what_is_not_positive():
    with pytest.raises(NotPositiveDefiniteError, match="smallest entry is -1"):
        DiagonalPrecision(torch.tensor([1.0, -1.0]))


def test_covariance_of_brute_force():
    """One oracle from elsewhere: the posterior covariance of tests/reference."""
    case = problem("gaussian", 5)
    J, r, Lam = case.parts()
    _, covariance = brute_force.weight_posterior(J, r, Lam, case.weights, case.delta)
    features = LayerwiseFeatures(Network(case.module, case.x), case.x)
    root = torch.linalg.cholesky(Lam)
    found = Dense().posterior_precision(DiagonalPrecision(case.delta), features, case.x, root)
    close(found.covariance(), covariance)
