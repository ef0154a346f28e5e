"""KFAC factors and their posterior against factors made by hand with autograd, and the cases in which it is exact."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dnn2gp import CategoricalLikelihood, GaussianLikelihood, convert
from dnn2gp.features import JacobianFeatures
from dnn2gp.inference import GaussNewtonStep, WeightSpace
from dnn2gp.support.errors import InputError
from dnn2gp.weights.structures import Dense, DiagonalPrecision, Kronecker

from reference import brute_force

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
N, DELTA = 6, 0.8


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(*layers):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(*(layer() for layer in layers)).double()


def close(a, b, rtol=1e-10):
    torch.testing.assert_close(a, b, rtol=rtol, atol=1e-12)


def factors_by_hand(module, x, root):
    """A = Σ a aᵀ and G = Σ g gᵀ / N of the two linear layers of a network, by autograd on their outputs."""
    a1 = x
    z1 = (a1 @ module[0].weight.T + module[0].bias).detach().requires_grad_(True)
    a2 = torch.tanh(z1)
    z2 = a2 @ module[2].weight.T + module[2].bias
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    pairs = []
    for a, z in ((a1, z1), (a2, z2)):
        a = torch.cat([a.detach(), ones], 1)
        G = torch.zeros(z.shape[1], z.shape[1], dtype=torch.float64)
        for n in range(len(x)):
            for r in range(root.shape[2]):
                g = torch.autograd.grad(z2[n] @ root[n, :, r], z, retain_graph=True)[0][n]
                G += torch.outer(g, g)
        pairs.append((a.T @ a, G / len(x)))
    return pairs


def dense_twin(pairs):
    """⊕ (G ⊗ A + δ) with the bias columns moved behind the weights, as they lie in the flat vector."""
    blocks = []
    for A, G in pairs:
        o, i = len(G), len(A)
        grid = torch.arange(o * i).view(o, i)
        order = torch.cat([grid[:, :-1].flatten(), grid[:, -1]])
        blocks.append(torch.kron(G, A)[order[:, None], order])
    return torch.block_diag(*blocks) + DELTA * torch.eye(sum(map(len, blocks)), dtype=torch.float64)


@pytest.fixture(scope="module")
def mlp():
    module = network(lambda: nn.Linear(3, 4), nn.Tanh, lambda: nn.Linear(4, 3))
    x, y = randn(N, 3), torch.arange(N) % 3
    gp = convert(module, (x, y), CategoricalLikelihood(), DELTA, structure=Kronecker(), mean=GaussNewtonStep())
    root = gp.model.expansion.root
    return module, x, gp, dense_twin(factors_by_hand(module, x, root))


def test_precision_is_that_of_factors_made_by_hand(mlp):
    _, _, gp, twin = mlp
    close(gp.posterior.precision.dense(), twin)


def test_predictive_variance_and_evidence_are_those_of_the_dense_twin(mlp):
    module, x, gp, twin = mlp
    J = brute_force.jacobian(module, x)
    covariance = torch.linalg.inv(twin)
    close(gp.predict(x).latent_covariance, torch.einsum("nkp,pq,nlq->nkl", J, covariance, J))
    close(gp.covariance(x), torch.einsum("nkp,pq,mlq->nkml", J, covariance, J))
    size = len(twin)
    expected = 0.5 * (torch.logdet(twin) - size * torch.log(torch.tensor(DELTA, dtype=torch.float64)))
    assert gp.evidence().complexity == pytest.approx(expected.item(), rel=1e-10)
    draws = gp.posterior.sample(20000, torch.Generator().manual_seed(0))
    empirical = torch.cov(draws.T)
    assert (empirical - covariance).abs().max() < 0.06 * covariance.diagonal().max()


def test_delta_moves_without_a_new_decomposition(mlp):
    _, _, gp, twin = mlp
    moved = gp.posterior.precision.with_prior(DiagonalPrecision(torch.full((len(twin),), 3.0, dtype=torch.float64)))
    close(moved.dense(), twin + (3.0 - DELTA) * torch.eye(len(twin), dtype=torch.float64))
    assert moved.blocks[0].input_vectors is gp.posterior.precision.blocks[0].input_vectors


def test_exact_for_one_example():
    """One example at one position: its GGN is (a aᵀ) ⊗ (Σ g gᵀ) within each layer; with one layer, all of it."""
    module, x = network(lambda: nn.Linear(3, 4)), randn(1, 3)
    settings = {"likelihood": CategoricalLikelihood(), "prior_precision": DELTA, "mean": GaussNewtonStep()}
    kfac = convert(module, (x, torch.tensor([2])), structure=Kronecker(), **settings)
    dense = convert(module, (x, torch.tensor([2])), structure=Dense(), inference=WeightSpace(), **settings)
    close(kfac.posterior.precision.dense(), dense.posterior.precision.dense())


def test_exact_for_linear_regression():
    """Output gradients that do not change with the example: G is one matrix, and Σ a aᵀ ⊗ G is the whole GGN."""
    module, x, y = network(lambda: nn.Linear(3, 2)), randn(N, 3), randn(N, 2, seed=1)
    likelihood = GaussianLikelihood(torch.tensor([0.3, 0.7], dtype=torch.float64))
    kfac = convert(module, (x, y), likelihood, DELTA, structure=Kronecker())
    dense = convert(module, (x, y), likelihood, DELTA, inference=WeightSpace())
    close(kfac.posterior.precision.dense(), dense.posterior.precision.dense())
    close(kfac.predict(x).variance, dense.predict(x).variance)


def test_exact_for_convolution_at_one_position():
    module = network(lambda: nn.Conv2d(2, 3, 3), nn.Flatten)
    x, y = randn(N, 2, 3, 3), randn(N, 3, seed=1)
    kfac = convert(module, (x, y), GaussianLikelihood(0.5), DELTA, structure=Kronecker())
    dense = convert(module, (x, y), GaussianLikelihood(0.5), DELTA, inference=WeightSpace())
    close(kfac.posterior.precision.dense(), dense.posterior.precision.dense())


def test_positions_are_averaged_as_in_kfac_expand():
    """A convolution at L positions: A = Σ_nl a aᵀ, G = Σ_nl g gᵀ / (N L), from patches cut by hand."""
    module = network(lambda: nn.Conv1d(1, 2, 2, bias=False), nn.Tanh, nn.Flatten)
    x = randn(N, 1, 4)
    gp = convert(module, (x, randn(N, 6, seed=1)), GaussianLikelihood(1.0), DELTA, structure=Kronecker())
    patches = torch.stack([x[:, 0, l : l + 2] for l in range(3)], 1)  # N L i
    z = torch.einsum("nli,oi->nol", patches, module[0].weight[:, 0])
    slope = (1 - torch.tanh(z) ** 2).detach()  # ∂f_{ol}/∂z_{ol}; all else is zero
    A = torch.einsum("nli,nlj->ij", patches, patches)
    G = torch.diag(slope.square().sum((0, 2))) / (N * 3)
    close(gp.posterior.precision.dense(), torch.kron(G, A) + DELTA * torch.eye(4, dtype=torch.float64))


def test_normalisation_and_embedding_blocks():
    """Weights that are no matrix get their whole GGN; a table's inputs are counts."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm = nn.Embedding(4, 3), nn.LayerNorm(3)

        def forward(self, t):
            return self.norm(self.table(t[:, 0]))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Net().double()
    t = torch.tensor([[0], [2], [2], [1], [0], [2]])
    gp = convert(module, (t, randn(N, 3)), GaussianLikelihood(1.0), DELTA, structure=Kronecker())
    exact = convert(module, (t, randn(N, 3)), GaussianLikelihood(1.0), DELTA, inference=WeightSpace())
    found, full = gp.posterior.precision.dense(), exact.posterior.precision.dense()
    close(found[12:, 12:], full[12:, 12:])
    assert not found[:12, 12:].any()
    jacobian = brute_force.jacobian(module, t)[..., :12].unflatten(-1, (4, 3))
    gradients = torch.stack([jacobian[n, :, t[n, 0]] for n in range(N)])
    G = torch.einsum("nko,nkp->op", gradients, gradients) / N
    counts = torch.diag(torch.bincount(t[:, 0], minlength=4).double())
    close(found[:12, :12], torch.kron(counts, G) + DELTA * torch.eye(12, dtype=torch.float64))


def test_refusals():
    module, x, y = network(lambda: nn.Linear(3, 4), nn.Tanh, lambda: nn.Linear(4, 2)), randn(N, 3), randn(N, 2)
    delta = torch.linspace(1, 2, sum(p.numel() for p in module.parameters()), dtype=torch.float64)
    with pytest.raises(InputError, match=r"prior_precision: .*Kronecker"):
        convert(module, (x, y), GaussianLikelihood(1.0), delta, structure=Kronecker())
    with pytest.raises(InputError, match="LayerwiseFeatures"):
        convert(module, (x, y), GaussianLikelihood(1.0), 1.0, structure=Kronecker(), features=JacobianFeatures)
    per_layer = convert(module, (x, y), GaussianLikelihood(1.0), {"0": 1.0, "2": 3.0}, structure=Kronecker())
    assert per_layer.posterior.precision.diagonal().min() >= 1.0


@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.FallbackWarning")
def test_weights_without_rules_have_one_block_for_each_layer():
    """Two layers that torch.func differentiates, and two that are not used, each with a δ of its own."""

    class Sine(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.w = nn.Parameter(torch.randn(size))

        def forward(self, x):
            return torch.sin(x / self.w.exp())

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.unused, self.middle = Sine(3), Sine(2), nn.Linear(3, 2)
            self.last, self.too = Sine(2), Sine(3)

        def forward(self, x):
            return self.last(self.middle(self.first(x)))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Net().double()
    deltas = {"first": 1.0, "unused": 2.0, "middle": 3.0, "last": 4.0, "too": 5.0}
    x, y = randn(N, 3), randn(N, 2, seed=1)
    found = convert(module, (x, y), GaussianLikelihood(1.0), deltas, structure=Kronecker()).posterior.precision.dense()
    J = brute_force.jacobian(module, x).flatten(0, 1)
    full = J.T @ J
    close(found[:3, :3], full[:3, :3] + torch.eye(3, dtype=torch.float64))
    close(found[3:5, 3:5], 2 * torch.eye(2, dtype=torch.float64))
    close(found[13:15, 13:15], full[13:15, 13:15] + 4 * torch.eye(2, dtype=torch.float64))
    close(found[15:, 15:], 5 * torch.eye(3, dtype=torch.float64))
    assert full[:3, 13:15].any()
    assert not found[:3, 13:15].any()


@pytest.mark.slow
def test_sampled_columns_are_unbiased_and_fewer():
    """The GGN diagonal from random columns of the root: C passes, and right on average."""
    module, x = network(lambda: nn.Linear(3, 4), nn.Tanh, lambda: nn.Linear(4, 3)), randn(N, 3)
    gp = convert(module, (x, torch.arange(N) % 3), CategoricalLikelihood(), DELTA)
    expansion, features = gp.model.expansion, gp.features
    exact = features.ggn_diagonal(x, expansion.root)
    generator = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(400):
        sampled = expansion.sampled(1, generator)
        assert sampled.root.shape == (N, 3, 1)
        draws.append(features.ggn_diagonal(x, sampled.root))
    mean, error = torch.stack(draws).mean(0), torch.stack(draws).std(0) / 20
    assert ((mean - exact).abs() < 4.5 * error + 1e-12).all()
    with pytest.raises(InputError, match="at least 1"):
        expansion.sampled(0)
