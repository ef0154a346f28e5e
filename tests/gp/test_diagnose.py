"""The diagnosis: its numbers against brute force and scikit-learn, its verdicts against held-out data."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_wine
from sklearn.metrics import accuracy_score, log_loss
from torch import nn

from dnn2gp import (
    CategoricalLikelihood,
    Diagonal,
    FunctionSpace,
    GaussianLikelihood,
    Kronecker,
    WeightSpace,
    convert,
    diagnose,
    precision_from_weight_decay,
)
from dnn2gp.gp.scores import Scores
from dnn2gp.inference import GaussNewtonStep, LinearisedMode, NetworkOutput, Posterior
from dnn2gp.inference.calibration import Calibration
from dnn2gp.weights import Expansion

from problems import KINDS, minimum, problem
from reference import averages, brute_force, linearised

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")

MEANS = (GaussNewtonStep(), LinearisedMode(), NetworkOutput(), NetworkOutput(sites_at_mode=True))


def _gp(case, **settings):
    return convert(case.module, (case.x, case.y), case.likelihood, case.delta, **settings)


# Oracles --------------------------------------------------------------------------------------------------------------


def _at_mode(case):
    """f of the network and at the mode, r at the mode, V and V₋ by explicit matrices."""
    f, J = brute_force.outputs(case.module, case.x), brute_force.jacobian(case.module, case.x)
    parts = J, f, case.weights, case.y, case.loss, case.delta
    theta = linearised.mode(*parts)
    mode = f + J @ (theta - case.weights)
    r, Lam = brute_force.residual_and_precision(case.loss, mode, case.y)
    covariance = torch.linalg.inv(torch.func.hessian(lambda at: linearised.total(at, *parts))(theta))
    V = torch.einsum("nkp,pq,nlq->nkl", J, covariance, J)
    left = torch.linalg.solve(torch.eye(f.shape[1], dtype=V.dtype) - V @ Lam, V)
    return f, mode, (left @ r.unsqueeze(-1)).squeeze(-1), V, left


def _two_classes(mean, covariance, scale=1.0, temperature=1.0):
    """Averaged probabilities of two classes, by adaptive quadrature over the difference of the logits."""
    gap = (mean[:, 1] - mean[:, 0]) / temperature
    variance = (covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]) * scale / temperature**2
    ones = [
        averages.integral(lambda f: 1 / (1 + math.exp(-f)), m, v, 0.0)
        for m, v in zip(gap.tolist(), variance.tolist(), strict=True)
    ]
    return np.stack([1 - np.array(ones), ones], 1)


def _ece(p, y):
    """15 bins of the confidence, by a loop."""
    confidence, right = p.max(1), p.argmax(1) == y
    bins = np.ceil(confidence * 15).astype(int)
    return sum(
        (bins == b).mean() * abs(right[bins == b].mean() - confidence[bins == b].mean()) for b in set(bins.tolist())
    )


def _same_classes(found: Scores | None, p, y, rel=1e-6) -> None:
    assert found is not None
    assert found.nll == pytest.approx(log_loss(y, p, labels=range(p.shape[1])), rel=rel)
    assert found.accuracy == pytest.approx(accuracy_score(y, p.argmax(1)))
    assert found.ece == pytest.approx(_ece(p, y), rel=rel)
    assert found.confidence == pytest.approx(p.max(1).mean(), rel=rel)


def _softmax(f):
    return torch.softmax(f, 1).numpy()


# Numbers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [WeightSpace(), FunctionSpace()], ids=repr)
@pytest.mark.parametrize("mean", [LinearisedMode(), NetworkOutput(sites_at_mode=True)], ids=repr)
def test_numbers_of_a_classifier(mean, space):
    case = problem("categorical", 20, outputs=2)
    f, mode, shift, V, left = _at_mode(case)
    y = case.y.numpy()
    a, tau = 0.3, 1.4
    found = diagnose(replace(_gp(case, mean=mean, inference=space), calibration=Calibration(a, tau)))
    around = isinstance(mean, NetworkOutput)
    _same_classes(found.network, _softmax(f), y)
    _same_classes(found.gp, _two_classes(f if around else mode, V, a, tau), y)
    apart = mode[:, 1] - mode[:, 0]
    ratio = ((f[:, 1] - f[:, 0]).norm() / apart.norm()).item()  # of the logits without their mean
    _same_classes(found.network_left_out, _softmax(ratio * (mode + shift)), y)
    scaled = ratio if around else 1.0
    unseen = _two_classes(scaled * (mode + shift), left, a, tau)
    _same_classes(found.left_out, unseen, y)
    before, after = (np.log(p[np.arange(20), y]) for p in (_softmax(ratio * (mode + shift)), unseen))
    assert found.gain == pytest.approx((after - before).mean(), rel=1e-5)
    assert found.gain_error == pytest.approx((after - before).std() / math.sqrt(20), rel=1e-5)
    centre = torch.eye(2, dtype=torch.float64) - 0.5
    variances = (centre @ V @ centre).diagonal(dim1=1, dim2=2)
    assert found.deviation == pytest.approx((a * variances.mean()).sqrt().item() / tau, rel=1e-6)
    moved = 0.0 if around else ((mode - f) @ centre).square().mean().sqrt().item()
    assert found.moved == pytest.approx(moved, rel=1e-6)
    same = np.bincount(y, minlength=2)[y]
    assert found.constant_nll == pytest.approx(-np.log(same / 21).mean())
    assert found.units == "logits"


@pytest.mark.parametrize("space", [WeightSpace(), FunctionSpace()], ids=repr)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("mean", [LinearisedMode(), NetworkOutput()], ids=repr)
def test_numbers_of_a_regression(mean, outputs, space):
    """Leave-one-out by refits without each example."""
    case = problem("gaussian", 12, outputs)
    f, mode, shift, V, left = _at_mode(case)
    J = brute_force.jacobian(case.module, case.x)
    parts = J, f, case.weights, case.y, case.loss, case.delta
    refits = [linearised.without(*parts, out) for out in range(12)]
    torch.testing.assert_close(mode + shift, torch.stack([each for each, _ in refits]), rtol=1e-8, atol=1e-8)
    found = diagnose(_gp(case, mean=mean, inference=space))
    around = isinstance(mean, NetworkOutput)

    def check(scores, mean, covariance):
        noise = covariance + 0.3**2 * torch.eye(outputs, dtype=torch.float64)
        expected = torch.distributions.MultivariateNormal(mean, noise).log_prob(case.y)
        assert scores.nll == pytest.approx(-expected.mean().item(), rel=1e-8)
        assert scores.rmse == pytest.approx((mean - case.y).square().mean().sqrt().item(), rel=1e-8)
        low, high = stats.norm(mean.numpy(), noise.diagonal(dim1=1, dim2=2).sqrt().numpy()).interval(0.9)
        assert scores.coverage == pytest.approx(((low <= case.y.numpy()) & (case.y.numpy() <= high)).mean())

    check(found.network, f, torch.zeros_like(V))
    check(found.gp, f if around else mode, V)
    towards = (case.y - mode).flatten()
    share = np.clip(np.linalg.lstsq(towards.numpy()[:, None], (f - mode).flatten().numpy(), rcond=None)[0].item(), 0, 1)
    without = f - share * (case.y - mode) + shift
    check(found.network_left_out, without, torch.zeros_like(V))
    check(found.left_out, without if around else mode + shift, left)
    assert found.deviation == pytest.approx(V.diagonal(dim1=1, dim2=2).mean().sqrt().item(), rel=1e-8)
    moved = 0.0 if around else (mode - f).square().mean().sqrt().item()
    assert found.moved == pytest.approx(moved, rel=1e-8)
    normal = stats.norm(case.y.numpy().mean(0), case.y.numpy().std(0, ddof=1))
    assert found.constant_nll == pytest.approx(-normal.logpdf(case.y.numpy()).sum(1).mean())
    assert found.units == "units of the targets"


def test_a_network_that_interpolates_does_not_know_the_targets_left_out():
    """Without its own target, it is estimated to predict what a ridge regression predicts."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(12, size, generator=generator, dtype=torch.float64) for size in (20, 1))
    network = nn.Linear(20, 1, bias=False).double()
    with torch.no_grad():
        network.weight.copy_(torch.linalg.lstsq(x, y).solution.T)
    torch.testing.assert_close(network(x), y)
    found = diagnose(convert(network, (x, y), GaussianLikelihood(0.5), 2.0))
    kept = [torch.arange(12) != out for out in range(12)]
    ridge = [torch.linalg.solve(x[k].T @ x[k] + 2.0 * 0.25 * torch.eye(20), x[k].T @ y[k]) for k in kept]
    without = torch.stack([x[out] @ w for out, w in enumerate(ridge)])
    assert found.network_left_out is not None
    expected = -stats.norm(without.numpy(), 0.5).logpdf(y.numpy()).mean()
    assert found.network_left_out.nll == pytest.approx(expected, rel=1e-8)
    assert found.verdict != "bad" or "ignores the inputs" in str(found)


def test_numbers_of_counts():
    case = problem("poisson", 8, outputs=1)
    f, mode, shift, _, left = _at_mode(case)
    found = diagnose(_gp(case, mean=LinearisedMode()))
    y, rates = case.y.numpy(), f.exp().numpy()
    assert found.network is not None
    assert found.left_out is not None
    assert found.network.nll == pytest.approx(-stats.poisson(rates).logpmf(y).mean(), rel=1e-9)
    low, high = stats.poisson(rates).interval(0.9)
    assert found.network.coverage == pytest.approx(((low <= y) & (y <= high)).mean())
    nll, inside = [], []
    for count, m, v in zip(y[:, 0], (mode + shift)[:, 0].tolist(), left[:, 0, 0].tolist(), strict=True):
        nll.append(-math.log(averages.integral(lambda f, n=count: stats.poisson(math.exp(f)).pmf(n), m, v)))
        at_most, below = (
            averages.integral(lambda f, n=n: stats.poisson(math.exp(f)).cdf(n), m, v) for n in (count, count - 1)
        )
        inside.append(at_most >= 0.05 and below < 0.95)
    assert found.left_out.nll == pytest.approx(np.mean(nll), rel=1e-6)
    assert found.left_out.coverage == pytest.approx(np.mean(inside))
    assert found.constant_nll == pytest.approx(-stats.poisson(y.mean()).logpmf(y).mean())
    assert found.units == "log rates"


def test_numbers_of_binary_outputs():
    case = problem("bernoulli", 14, outputs=1)
    f, mode, shift, V, left = _at_mode(case)
    found = diagnose(_gp(case, mean=LinearisedMode()))

    def both(mean, covariance):
        wide = torch.cat([torch.zeros_like(mean), mean], 1)
        return _two_classes(wide, torch.nn.functional.pad(covariance, (1, 0, 1, 0)))

    y = case.y[:, 0].long().numpy()
    _same_classes(found.network, both(f, torch.zeros_like(V)), y)
    _same_classes(found.gp, both(mode, V), y)
    _same_classes(found.left_out, both(mode + shift, left), y)
    ones = case.y.sum().item()
    assert found.constant_nll == pytest.approx(-np.log(np.where(y == 1, ones, 14 - ones) / 15).mean())


def test_three_classes_are_averaged_over_points():
    """512 Sobol points instead of a grid of 601 × 601: the error of a mean over examples."""
    case = problem("categorical", 6, outputs=3)
    _, mode, shift, _, left = _at_mode(case)
    p = [averages.over_three_logits(m, V, lambda f: f.softmax(1)) for m, V in zip(mode + shift, left, strict=True)]
    found = diagnose(_gp(case, mean=LinearisedMode())).left_out
    assert found is not None
    assert found.nll == pytest.approx(log_loss(case.y.numpy(), torch.stack(p).numpy(), labels=[0, 1, 2]), abs=2e-3)


def test_a_single_gauss_newton_step_is_measured_in_logits():
    case = problem("categorical", 9, 3)
    J, r, Lam = case.parts()
    mean, covariance = brute_force.weight_posterior(J, r, Lam, case.weights, case.delta)
    centre = torch.eye(3, dtype=torch.float64) - 1 / 3
    moved = J @ (mean - case.weights) @ centre
    variances = torch.einsum("kl,nlp,pq,nmq,mk->nk", centre, J, covariance, J, centre)
    found = diagnose(_gp(case, mean=GaussNewtonStep()))
    assert found.moved == pytest.approx(moved.square().mean().sqrt().item(), rel=1e-8)
    assert found.deviation == pytest.approx(variances.mean().sqrt().item(), rel=1e-8)
    assert found.left_out is None
    assert "minimum" in found.unavailable


def test_at_a_minimum_all_means_agree():
    case = minimum("categorical", 12, 2)
    network, *others = [diagnose(_gp(case, mean=mean)) for mean in MEANS]
    for other in others:
        for name in ("network", "gp", "network_left_out", "left_out"):
            assert getattr(other, name).nll == pytest.approx(getattr(network, name).nll, rel=1e-5)


def test_one_pass_over_the_training_inputs(monkeypatch):
    case = problem("categorical", 12, 2)
    gp = _gp(case, mean=NetworkOutput(sites_at_mode=True))
    passes = []
    latent = Posterior.latent
    monkeypatch.setattr(Posterior, "latent", lambda *given: passes.append(given) or latent(*given))
    diagnose(gp)
    assert len(passes) == 1


# Verdicts -------------------------------------------------------------------------------------------------------------


def _wine():
    """Wines with a tenth of the labels drawn at random, 90 for training and the others held out."""
    data = load_wine()
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(data.target), generator=generator)
    x, y = torch.tensor(data.data)[order], torch.tensor(data.target)[order]
    noisy = torch.rand(len(y), generator=generator) < 0.1
    y = torch.where(noisy, torch.randint(3, y.shape, generator=generator), y)
    x = (x - x[:90].mean(0)) / x[:90].std(0)
    return (x[:90], y[:90]), (x[90:], y[90:])


@pytest.fixture(scope="module")
def overfit():
    """A network trained by Adam with mini-batches until it knows its labels by heart."""
    train, held_out = _wine()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Linear(13, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 3)
        network = nn.Sequential(*layers).double()
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-2, weight_decay=1e-4)
        for _ in range(200):
            for batch in torch.randperm(90).split(32):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(train[0][batch]), train[1][batch]).backward()
                optimizer.step()
    with torch.no_grad():
        outside = network(held_out[0]).softmax(1).numpy()
    return network, train, held_out, outside


def _overfit_gp(overfit, **settings):
    network, train, (x, y), outside = overfit
    gp = convert(network, train, CategoricalLikelihood(), precision_from_weight_decay(1e-4, 90), **settings)
    return diagnose(gp), gp.predict(x).probabilities.numpy(), outside, y.numpy()


def test_the_default_helps_an_overfit_network(overfit):
    report, inside, outside, y = _overfit_gp(overfit)
    assert log_loss(y, inside) < log_loss(y, outside) - 0.1  # it does
    assert report.verdict == "good", str(report)
    assert report.trustworthy
    assert "better than the network" in str(report).splitlines()[0]
    assert report.gain is not None
    assert report.gain > 0.1
    assert report.advice.startswith("Use gp.predict")


def test_one_step_away_from_a_minimum_destroys_it(overfit):
    report, inside, outside, y = _overfit_gp(overfit, mean=GaussNewtonStep())
    assert accuracy_score(y, inside.argmax(1)) < accuracy_score(y, outside.argmax(1)) - 0.1  # it does
    assert report.verdict == "bad", str(report)
    assert not report.trustworthy
    assert "worse than the network" in str(report).splitlines()[0]
    assert "not available" in str(report)  # leave-one-out, with the reason
    assert report.advice.startswith("Convert without mean=")
    p = torch.softmax(overfit[0](overfit[1][0]).detach(), 1).numpy()
    _same_classes(report.network, p, overfit[1][1].numpy())


def test_too_wide_a_posterior_is_called_too_cautious():
    """A well-fitted network with a hundred thousand times the posterior covariance."""
    case = minimum("categorical", 12, 2)
    x, y = case.x, brute_force.outputs(case.module, case.x).argmax(1)
    gp = convert(case.module, (x, y), case.likelihood, case.delta, mean=LinearisedMode())
    report = diagnose(replace(gp, calibration=Calibration(scale=1e5)))
    assert report.verdict == "bad", str(report)
    assert report.gain is not None
    assert report.gain < -0.1
    fine = diagnose(replace(gp, calibration=Calibration(scale=0.1)))
    assert fine.verdict != "bad", str(fine)


def test_a_trained_regression_is_good():
    x = torch.linspace(-2, 2, 60, dtype=torch.float64)[:, None]
    y = torch.sin(2 * x) + 0.1 * torch.randn(60, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=500, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        penalty = sum((p**2).sum() for p in network.parameters())
        loss = ((network(x) - y) ** 2).sum() / (2 * 0.1**2) + 0.5 * 0.1 * penalty
        loss.backward()
        return loss

    optimizer.step(closure)
    report = diagnose(convert(network, (x, y), GaussianLikelihood(0.1), 0.1))
    assert report.verdict == "good", str(report)
    assert report.advice == "Use gp.predict(inputs).interval(0.9)."
    # With a tenth of the noise, the intervals are far too narrow.
    report = diagnose(convert(network, (x, y), GaussianLikelihood(0.01), 10.0))
    assert report.verdict != "good"
    assert "too sure" in str(report)


def test_an_untrained_network_needs_training():
    """The linearised network learns a linear function, but the network knows nothing of it."""
    case = problem("gaussian", 30)
    noise = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    report = diagnose(convert(case.module, (case.x, 3 + 2 * case.x + 0.3 * noise), GaussianLikelihood(0.5), 1e-2))
    assert report.verdict == "good", str(report)
    assert report.moved > 2 * report.deviation
    assert "training" in report.advice


def test_worse_than_a_guess_is_bad():
    """Targets that have nothing to do with the inputs, and a noise that claims otherwise."""
    generator = torch.Generator().manual_seed(0)
    case = problem("gaussian", 30)
    y = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    report = diagnose(convert(case.module, (case.x, y), GaussianLikelihood(0.05), 1.0))
    assert report.verdict == "bad"
    assert "ignores the inputs" in str(report).splitlines()[0]


def test_a_saturated_network_is_found_out():
    network = nn.Linear(2, 2).double()
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[1e3, 0.0], [-1e3, 0.0]]))
        network.bias.zero_()
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.5], [2.0, 1.0]], dtype=torch.float64)
    settings = {"prior_precision": 1e-3, "mean": NetworkOutput()}
    report = diagnose(convert(network, (x, torch.tensor([0, 1, 0])), CategoricalLikelihood(), **settings))
    assert report.uninformative == 1
    assert report.verdict != "good"
    assert "100.0 % of the examples" in str(report)
    assert "saturated" in str(report)


def test_grades_follow_the_numbers():
    case = problem("categorical", 12, 2)
    report = diagnose(_gp(case, mean=LinearisedMode()))
    assert report == diagnose(_gp(case, mean=LinearisedMode()))
    scores = Scores(0.3, accuracy=0.9, confidence=0.9, ece=0.02)
    fine = replace(
        report,
        num_examples=1000,
        network=scores,
        gp=scores,
        network_left_out=scores,
        left_out=scores,
        gain_error=0.001,
        constant_nll=0.7,
    )
    assert fine.verdict == "good"
    assert "as well as" in str(fine)
    assert "better than" in str(replace(fine, left_out=replace(scores, nll=0.2)))
    assert replace(fine, left_out=replace(scores, nll=0.35)).verdict == "caution"
    assert replace(fine, left_out=replace(scores, nll=0.45)).verdict == "bad"
    assert replace(fine, left_out=replace(scores, nll=0.45), gain_error=0.1).verdict == "good"  # within its error
    assert replace(fine, left_out=replace(scores, nll=0.85), gain_error=9.0).verdict == "bad"  # worse than a guess
    assert replace(fine, gp=replace(scores, accuracy=0.8)).verdict == "bad"
    better = replace(scores, nll=0.2)
    assert replace(fine, gp=replace(scores, accuracy=0.8), left_out=better).verdict == "good"
    for confidence, word in ((0.5, "too cautious"), (1.0, "too sure")):
        off = replace(fine, left_out=replace(scores, accuracy=0.8, confidence=confidence))
        assert off.verdict == "caution"
        assert word in str(off)
    blind = replace(fine, left_out=None, network_left_out=None, unavailable="of a reason")
    assert blind.gain is None
    assert blind.verdict == "caution"
    assert "because of a reason" in str(blind)
    assert replace(blind, gp=replace(scores, nll=1.5)).verdict == "bad"
    assert replace(blind, gp=replace(scores, confidence=0.5)).findings[2].grade == "caution"
    assert replace(fine, num_examples=9).verdict == "caution"  # too few to tell


# Everything else gets a report too ------------------------------------------------------------------------------------


def _readable(report) -> None:
    words = str(report)
    assert len(words.splitlines()) <= 15
    assert "nan" not in words.replace("not available", "")
    assert "None" not in words
    assert report.verdict in ("good", "caution", "bad")
    assert words.splitlines()[-1] == f"Next: {report.advice}"
    for number in (report.deviation, report.moved, report.uninformative, report.gain or 0.0):
        assert math.isfinite(number)


@pytest.mark.parametrize("mean", [None, *MEANS], ids=repr)
@pytest.mark.parametrize("examples", [1, 2, 12])
@pytest.mark.parametrize("kind", KINDS)
def test_every_likelihood_and_mean(kind, examples, mean):
    case = problem(kind, examples, outputs=2 if kind in ("categorical", "gaussian per output") else 1)
    _readable(diagnose(_gp(case, mean=mean)))


@pytest.mark.parametrize("structure", [Diagonal(), Kronecker()], ids=repr)
@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_approximate_structures(kind, structure):
    case = problem(kind, 12)
    report = diagnose(convert(case.module, (case.x, case.y), case.likelihood, 1.0, structure=structure))
    _readable(report)
    assert structure.name in str(report)


def test_a_structure_without_leave_one_out_says_so():
    case = problem("categorical", 40, outputs=3, width=30)
    gp = convert(case.module, (case.x, case.y), case.likelihood, 1e-6, structure=Diagonal())
    report = diagnose(gp)
    _readable(report)
    assert report.left_out is None
    assert "diagonal" in report.unavailable
    assert report.verdict != "good"


def test_gradient_features_and_files_without_targets():
    case = problem("categorical", 12, 3)
    report = diagnose(_gp(case, expansion=Expansion.empirical_fisher))
    _readable(report)
    assert report.network is None
    assert "gradient features" in report.unavailable
    assert report.deviation > 0


def test_a_conditioned_gp():
    case = problem("gaussian", 12)
    first, more = slice(0, 6), slice(6, 12)
    gp = convert(case.module, (case.x[first], case.y[first]), case.likelihood, case.delta)
    joined = diagnose(gp.condition((case.x[more], case.y[more])))
    whole = diagnose(_gp(case))
    assert joined.num_examples == 12
    assert joined.left_out is not None
    assert whole.left_out is not None
    assert joined.left_out.nll == pytest.approx(whole.left_out.nll, rel=1e-7)
    for kind in ("categorical", "poisson"):
        case = problem(kind, 12)
        gp = convert(case.module, (case.x[first], case.y[first]), case.likelihood, case.delta)
        _readable(diagnose(gp.condition((case.x[more], case.y[more]))))


def test_noise_of_each_example_and_soft_labels():
    case = problem("gaussian", 12)
    sigma = torch.linspace(0.1, 0.5, 12, dtype=torch.float64)[:, None]
    _readable(diagnose(convert(case.module, (case.x, case.y), GaussianLikelihood(sigma), case.delta)))
    case = problem("bernoulli", 12)
    soft = diagnose(convert(case.module, (case.x, 0.1 + 0.8 * case.y), case.likelihood, case.delta))
    _readable(soft)
    assert soft.left_out is not None
    assert soft.left_out.accuracy is None
    assert "hard labels" in str(soft)


def test_weights_without_a_posterior_are_named():
    case = problem("gaussian", 20)
    report = diagnose(convert(case.module, (case.x, case.y), case.likelihood, 1.0, subset="last layer"))
    weights = [weight.numel() for weight in case.module.parameters()]
    assert report.share == sum(weights[2:]) / sum(weights)
    assert "not in subset=" in str(report)


def test_rounding_is_named():
    case = problem("gaussian", 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = diagnose(convert(case.module, (case.x, case.y), GaussianLikelihood(1e-7), case.delta))
    _readable(report)
    assert report.left_out is None
    assert "rounding" in report.unavailable
