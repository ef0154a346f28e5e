"""Sampled columns of the curvature of softmax: their mean is Λ, exactly and over seeds."""

from __future__ import annotations

import pytest
import torch

from dnn2gp.likelihoods import BernoulliLikelihood, CategoricalLikelihood, GaussianLikelihood, PoissonLikelihood
from dnn2gp.support.errors import InputError
from dnn2gp.weights import SampledColumns
from dnn2gp.weights.columns import column_sizes, drawn, inclusion, uniforms

from reference import brute_force

SOFTMAX = CategoricalLikelihood()


def logits(n=5, K=12, dtype=torch.float64):
    f = 2 * torch.randn(n, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    f[1] *= 10  # certain of its class
    f[2] = 0  # all classes alike
    f[3, 4:] = -2000.0  # only four classes are possible
    return f.to(dtype)


def precision(f):
    """Λ by differentiating the loss twice."""
    labels = torch.zeros(len(f), dtype=torch.long)
    return brute_force.residual_and_precision(brute_force.categorical, f, labels)[1]


def vectors(p):
    """t_j = √p_j (e_j − p), one per column."""
    return (torch.eye(p.shape[1], dtype=p.dtype) - p[:, :, None]) * p[:, None, :].sqrt()


def test_columns_of_all_labels_make_the_curvature():
    f = logits()
    t = vectors(f.softmax(1))
    torch.testing.assert_close(t @ t.mT, precision(f))
    torch.testing.assert_close(column_sizes(f.softmax(1)), t.square().sum(1))


@pytest.mark.parametrize("count", [1, 2, 5, 10])
def test_mean_over_all_draws_is_the_curvature_exactly(count):
    """What is drawn changes with u only where a point passes an end of an interval, so the mean over u is a sum."""
    f = logits()
    p = f.softmax(1)
    ordered, order = column_sizes(p).sort(dim=1, descending=True)
    probabilities = inclusion(ordered, count)
    assert bool((probabilities <= 1).all())
    assert bool((probabilities.sum(1) < count + 1e-12).all())
    t = vectors(p).gather(2, order[:, None].expand_as(vectors(p)))
    for n in range(len(f)):
        breaks = torch.cat([probabilities[n].cumsum(0) % 1, torch.tensor([0.0, 1.0])]).sort().values
        lengths, middles = breaks.diff(), (breaks[1:] + breaks[:-1]) / 2
        places, weights = drawn(probabilities[n].expand(len(middles), -1), middles, count)
        columns = t[n][:, places].permute(1, 0, 2) * weights[:, None]
        mean = (lengths[:, None, None] * (columns @ columns.mT)).sum(0)
        torch.testing.assert_close(mean, precision(f)[n], rtol=1e-9, atol=1e-13)


def test_mean_over_seeds_is_the_curvature():
    f, draws = logits(), 2000
    found = torch.stack([SampledColumns(3, seed).root(SOFTMAX, f) for seed in range(draws)])
    estimates = found @ found.mT
    error = estimates.std(0) / draws**0.5
    assert bool((error > 1e-4).any())
    gaps = (estimates.mean(0) - precision(f)).abs()
    assert bool((gaps < 5 * error + 1e-9).all())


def test_trace_is_that_of_the_curvature_in_every_draw():
    f = logits()
    for seed in range(20):
        root = SampledColumns(4, seed).root(SOFTMAX, f)
        torch.testing.assert_close(root.square().sum((1, 2)), precision(f).diagonal(dim1=1, dim2=2).sum(1))


def test_drawing_without_replacement_varies_less_than_with():
    """uᵀ(S Sᵀ)u for random u, compared with c labels drawn independently from p."""
    f, draws, count = logits()[:1], 2000, 4
    u = torch.randn(12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    roots = torch.stack([SampledColumns(count, seed).root(SOFTMAX, f)[0] for seed in range(draws)])
    ours = (u @ roots).square().sum(1)
    p = f[0].softmax(0)
    labels = torch.multinomial(p, draws * count, replacement=True, generator=torch.Generator().manual_seed(2))
    plain = (u[labels] - u @ p).square().reshape(draws, count).mean(1)
    assert 0 < ours.std() < 0.3 * plain.std()


@pytest.mark.parametrize("count", [11, 12, 50])
def test_with_as_many_columns_as_classes_nothing_is_drawn(count):
    f = logits()
    found = SampledColumns(count).root(SOFTMAX, f)
    assert torch.equal(found, SOFTMAX.noise_precision_root(f))
    assert SampledColumns(count).rank(12) == found.shape[2] == 11


def test_draw_depends_on_position_and_seed_but_not_on_chunks():
    f = logits(40)
    columns = SampledColumns(3, seed=4)
    whole = columns.root(SOFTMAX, f)
    parts = [columns.root(SOFTMAX, f[start : start + 7], start) for start in range(0, 40, 7)]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(SampledColumns(3, seed=5).root(SOFTMAX, f), whole)
    assert not torch.equal(columns.root(SOFTMAX, f, 1), whole)


def test_random_numbers_are_uniform_and_unrelated():
    many = torch.stack([uniforms(seed, 0, 500, torch.device("cpu")) for seed in range(200)])
    assert bool(((many > 0) & (many < 1)).all())
    counts = torch.histc(many, 10, 0, 1)
    assert (counts / 1e4 - 1).abs().max() < 0.05
    assert torch.corrcoef(many).fill_diagonal_(0).abs().max() < 0.25  # 1/√500 is 0.045
    assert torch.corrcoef(many.T).fill_diagonal_(0).abs().max() < 0.4


def test_float32_keeps_its_digits_where_the_network_is_certain():
    f = logits(dtype=torch.float32)
    narrow, wide = (SampledColumns(3).root(SOFTMAX, each) for each in (f, f.double()))
    assert narrow.dtype == torch.float32
    sizes = wide.square().sum((1, 2)).sqrt()
    assert 0 < sizes[1] < 1e-3
    torch.testing.assert_close(narrow.double() / sizes[:, None, None], wide / sizes[:, None, None], rtol=0, atol=1e-5)


def test_product_with_the_curvature():
    f = logits()
    u = torch.randn(f.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    expected = (precision(f) @ u[:, :, None])[:, :, 0]
    torch.testing.assert_close(SOFTMAX.noise_precision_matmul(f, u), expected)
    both = BernoulliLikelihood()
    torch.testing.assert_close(both.noise_precision_matmul(f, u), f.sigmoid() * (-f).sigmoid() * u)


@pytest.mark.parametrize("likelihood", [GaussianLikelihood(0.1), BernoulliLikelihood(), PoissonLikelihood()])
def test_other_likelihoods_are_refused(likelihood):
    with pytest.raises(InputError, match="columns"):
        SampledColumns(2).root(likelihood, logits())


@pytest.mark.parametrize("options", [{"num_columns": 0}, {"seed": -1}])
def test_options_are_checked(options):
    with pytest.raises(InputError, match=next(iter(options))):
        SampledColumns(**options)
