"""The parts of iterative inference against dense matrices: the basis, conjugate gradients and coupled samples."""

from __future__ import annotations

import pytest
import torch

from dnn2gp.inference.iterative.basis import Basis
from dnn2gp.inference.iterative.coupled import estimate
from dnn2gp.inference.iterative.samples import Nystrom, log_det_estimates
from dnn2gp.inference.iterative.solve import solve

P, M = 60, 90


@pytest.fixture(scope="module")
def rows():
    """Φ with singular values over five decades."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(size, P, generator=generator, dtype=torch.float64)).Q for size in (M, P))
    return left * torch.logspace(3, -2, P, dtype=torch.float64) @ right.T


def _normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _basis(rows, rank, width=5):
    return Basis.of(lambda vectors: rows.T @ (rows @ vectors), _normal(P, width), rank, width)


def test_the_basis_contains_the_image_of_its_first_columns(rows):
    G, basis = rows.T @ rows, _basis(rows, 20)
    assert basis.rank == 20
    assert basis.vectors.shape == (P, 25)
    torch.testing.assert_close(basis.vectors.T @ basis.vectors, torch.eye(25, dtype=torch.float64), atol=1e-13, rtol=0)
    torch.testing.assert_close(G @ basis.vectors[:, :20], basis.vectors @ basis.image, atol=1e-9, rtol=0)


def test_the_nystrom_approximation_is_that_of_the_space_and_below_the_matrix(rows):
    G, basis = rows.T @ rows, _basis(rows, 20)
    Q = basis.vectors[:, :20]
    expected = G @ Q @ torch.linalg.inv(Q.T @ G @ Q) @ Q.T @ G
    values, vectors = basis.nystrom
    found = basis.vectors @ (vectors * values) @ vectors.T @ basis.vectors.T
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-9)
    assert torch.linalg.eigvalsh(G - found)[0] > -1e-8
    inverse = torch.linalg.inv(torch.eye(P, dtype=torch.float64) + expected)
    unit = torch.eye(P, dtype=torch.float64)
    torch.testing.assert_close(Nystrom.of(basis).solve(unit), inverse, atol=1e-9, rtol=0)
    torch.testing.assert_close(
        torch.tensor(Nystrom.of(basis).log_det, dtype=torch.float64), -torch.logdet(inverse), rtol=1e-10, atol=0
    )
    pulled = rows.T @ _normal(M, 3)
    torch.testing.assert_close(
        basis.projected(pulled), G @ Q @ torch.linalg.solve(Q.T @ G @ Q, Q.T @ pulled), atol=1e-8, rtol=1e-8
    )


def test_a_basis_of_all_directions_is_exact(rows):
    G, basis = rows.T @ rows, _basis(rows, 1000)
    values, vectors = basis.nystrom
    found = basis.vectors @ (vectors * values) @ vectors.T @ basis.vectors.T
    torch.testing.assert_close(found, G, atol=1e-8, rtol=0)


def test_a_matrix_of_low_rank_ends_the_basis():
    rows = _normal(7, P, seed=3)
    basis = _basis(rows, 40)
    assert basis.vectors.shape[1] <= 15  # the start, what is left of its image, and nothing else
    values, vectors = basis.nystrom
    found = basis.vectors @ (vectors * values) @ vectors.T @ basis.vectors.T
    torch.testing.assert_close(found, rows.T @ rows, atol=1e-10, rtol=0)


def test_quadrature_over_the_whole_space_is_the_average_over_the_probes(rows):
    """With all directions, Σ ωₖ f(λₖ) is the mean of zᵀf(G)z over the random columns z of the start."""
    start = _normal(P, 5)
    G = rows.T @ rows
    basis = Basis.of(lambda vectors: G @ vectors, start, P, 3)
    nodes, weights = basis.quadrature()
    values, vectors = torch.linalg.eigh(G)
    log = vectors * torch.log1p(values) @ vectors.T
    expected = torch.einsum("ps,pq,qs->s", start, log, start)
    torch.testing.assert_close(weights @ torch.log1p(nodes), expected[2:].mean(), rtol=1e-8, atol=0)
    torch.testing.assert_close(basis.along_first() @ torch.log1p(nodes), expected[0], rtol=1e-8, atol=0)
    scaled, _ = basis.scaled(3.0).quadrature()
    torch.testing.assert_close(scaled, 3 * nodes)


def test_conjugate_gradients_solve_each_column_and_know_the_matrix(rows):
    A = torch.eye(P, dtype=torch.float64) + rows.T @ rows
    nystrom, right = Nystrom.of(_basis(rows, 40)), _normal(P, 4)
    right[:, 1] = 0
    found = solve(lambda vectors: A @ vectors, right, nystrom.solve, 1e-12, 100)
    torch.testing.assert_close(found.solution, torch.linalg.solve(A, right), rtol=1e-8, atol=1e-10)
    assert found.iterations[1] == 0
    assert bool((found.residuals <= 1e-12).all())
    inverse = nystrom.solve(torch.eye(P, dtype=torch.float64))
    values, vectors = torch.linalg.eigh(inverse)
    root = vectors * values.sqrt() @ vectors.T
    values, vectors = torch.linalg.eigh(root @ A @ root)
    expected = torch.einsum("ps,pq,qs->s", root @ right, vectors * (values.log() / values) @ vectors.T, root @ right)
    torch.testing.assert_close(log_det_estimates(found)[0], expected, rtol=1e-6, atol=1e-9)


def test_columns_that_are_solved_wait_for_the_others(rows):
    A = torch.eye(P, dtype=torch.float64) + rows.T @ rows
    values, vectors = torch.linalg.eigh(A)
    right = torch.stack([vectors[:, 0], vectors @ torch.ones(P, dtype=torch.float64)], 1)
    found = solve(lambda vectors: A @ vectors, right, lambda vectors: vectors, 1e-6, 1000)
    assert found.iterations[0] == 1 < found.iterations[1]
    torch.testing.assert_close(found.solution[:, 0], vectors[:, 0] / values[0])


def _coupled(count, K=3, n=50, share=0.6):
    """V, D, and samples of both, for n random inputs."""
    roots = _normal(2, n, K, K, seed=5)
    V, D = share * roots[0] @ roots[0].mT, (1 - share) * roots[1] @ roots[1].mT
    noise = _normal(2, n, K, count, seed=6)
    own, other = (torch.linalg.cholesky(each) @ noise[place] for place, each in enumerate((V, D)))
    return V, V + D, own, other


def test_the_coupled_estimate_has_the_largest_likelihood():
    """The gradient of log N(Jθ | 0, V) + log N(Jη | 0, T − V) vanishes there, by autograd."""
    _, total, own, other = _coupled(20)
    found = estimate(total, own, other).covariance.requires_grad_()
    covariances = {found: own @ own.mT / 20, total - found: other @ other.mT / 20}
    loss = sum(
        (torch.logdet(C) + torch.linalg.solve(C, S).diagonal(dim1=1, dim2=2).sum(1)) for C, S in covariances.items()
    )
    (gradient,) = torch.autograd.grad(loss.sum(), found)
    scale = torch.linalg.inv(found.detach()).norm(dim=(1, 2)) + torch.linalg.inv((total - found).detach()).norm(
        dim=(1, 2)
    )
    assert (gradient.norm(dim=(1, 2)) / scale).max() < 1e-2
    assert bool((torch.linalg.eigvalsh(found.detach()) > 0).all())
    assert bool((torch.linalg.eigvalsh((total - found).detach()) > 0).all())


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_the_stated_error_is_that_of_the_estimate_and_below_that_of_samples(share):
    V, total, own, other = _coupled(64, n=2000, share=share)
    found = estimate(total, own, other)
    trace = V.diagonal(dim1=1, dim2=2).sum(1)
    errors = (found.covariance.diagonal(dim1=1, dim2=2).sum(1) - trace) / trace
    plain = (own.square().sum(1).mean(1) - trace) / trace
    z = errors / found.error
    assert 0.9 < z.square().mean().sqrt() < 1.15
    assert (z.abs() < 2).double().mean() > 0.92
    assert errors.square().mean() < plain.square().mean()


@pytest.mark.parametrize("count", [1, 4, 8, 19])
def test_few_samples_of_many_outputs(count):
    """Fewer samples than outputs say nothing about most directions: V is between 0 and T there, too."""
    V, total, own, other = _coupled(count, K=10, n=300)
    found = estimate(total, own, other)
    shares = torch.linalg.eigvals(torch.linalg.solve(total, found.covariance)).real
    assert shares.min() > 0
    assert shares.max() < 1
    trace = V.diagonal(dim1=1, dim2=2).sum(1)
    errors = found.covariance.diagonal(dim1=1, dim2=2).sum(1) / trace - 1
    plain = own.square().sum(1).mean(1) / trace - 1
    assert errors.square().mean() < plain.square().mean()
    if count >= 4:  # with fewer samples, the error is a guess, too
        assert 0.8 < (errors / found.error).square().mean().sqrt() < 1.6


def test_without_a_difference_the_estimate_is_exact():
    V, _, own, other = _coupled(16)
    found = estimate(V, own, 0 * other)
    torch.testing.assert_close(found.covariance, V, rtol=1e-8, atol=1e-10)
    assert found.error.max() < 1e-6


def test_outputs_that_are_multiples_of_each_other_stay_so():
    """T has rank 1 then, and so has V."""
    _, total, own, other = _coupled(16, K=1)
    rows = torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
    alone = estimate(total, own, other).covariance
    found = estimate(rows @ total @ rows.T, rows @ own, rows @ other).covariance
    torch.testing.assert_close(found, rows @ alone @ rows.T, rtol=1e-6, atol=1e-12)
