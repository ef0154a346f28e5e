"""The online-Newton family: every row of its table against the update written out, and where it stops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dnn2gp import GaussianLikelihood
from dnn2gp.features import LayerwiseFeatures
from dnn2gp.network import Network
from dnn2gp.network.data import Data
from dnn2gp.support.errors import DivergedError, InputError, NotPositiveDefiniteError
from dnn2gp.weights import OnlineNewton
from dnn2gp.weights.curvature import Curvature, EmpiricalFisher, ExactHessian, GaussNewton
from dnn2gp.weights.online_newton import State
from dnn2gp.weights.structures import Dense, Diagonal

from problems import Problem, functional, problem
from reference import brute_force

CURVATURES = (GaussNewton(), EmpiricalFisher(), ExactHessian())
STRUCTURES = (Dense(), Diagonal())


def method(case: Problem, curvature=CURVATURES[0], structure=Dense(), num_samples: int = 0, **settings) -> OnlineNewton:
    features = LayerwiseFeatures(Network(case.module, case.x), case.x)
    own = {"num_data": len(case.x), **settings}
    return OnlineNewton(
        features, case.likelihood, own.pop("num_data"), case.delta, curvature, structure, num_samples, **own
    )


def data(case: Problem, part: slice = slice(None)) -> Data:
    return Data(case.x[part], case.y[part])


def hessian(case: Problem, curvature: Curvature, weights: Tensor) -> Tensor:
    """Σᵢ ∇²ℓᵢ(w) in three ways, by brute force."""
    if isinstance(curvature, ExactHessian):
        return torch.func.hessian(lambda w: data_loss(case, w))(weights)
    module = brute_force.with_weights(case.module, weights)
    J, f = brute_force.jacobian(module, case.x), brute_force.outputs(module, case.x)
    r, Lam = brute_force.residual_and_precision(case.loss, f, case.y)
    if isinstance(curvature, EmpiricalFisher):
        g = torch.einsum("nkp,nk->np", J, r)
        return g.T @ g
    return torch.einsum("nkp,nkl,nlq->pq", J, Lam, J)


def data_loss(case: Problem, weights: Tensor) -> Tensor:
    f = functional(case.module, weights, case.x)
    return torch.stack([case.loss(fi, yi) for fi, yi in zip(f, case.y, strict=True)]).sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "structure", "num_samples"),
    [
        *(("categorical", structure, count) for structure in STRUCTURES for count in (0, 1, 2)),
        *((kind, Dense(), 0) for kind in ("gaussian", "bernoulli", "poisson", "custom")),
        *((kind, Diagonal(), 2) for kind in ("gaussian", "bernoulli", "poisson", "custom")),
    ],
)
@pytest.mark.parametrize("curvature", CURVATURES, ids=str)
def test_three_steps_are_the_update_written_out(kind, structure, curvature, num_samples):
    """With two rates, momentum, temperature and N ≠ M."""
    case = problem(kind)
    beta, rate, gamma, T, N = 0.05, 0.02, 0.7, 1.5, 11
    own = method(case, curvature, structure, num_samples, num_data=N, momentum=gamma, temperature=T)
    state, generator = own.init(case.weights, 30.0), torch.Generator().manual_seed(0)
    mean, precision = case.weights.clone(), 30.0 * torch.eye(len(case.weights)).double()
    momentum = torch.zeros_like(mean)
    scale = N / (len(case.x) * T)
    for step in range(3):
        state, info = own.update(state, data(case), beta, rate, generator=generator)
        gradients = torch.stack([torch.func.grad(lambda w: data_loss(case, w))(w) for w in info.samples])
        curved = torch.stack([hessian(case, curvature, w) for w in info.samples]).mean(0)
        target = scale * curved + torch.diag(case.delta)
        target = torch.diag(target.diagonal()) if structure == Diagonal() else target
        precision = (1 - rate) * precision + rate * target
        gradient = scale * gradients.mean(0) + case.delta * mean
        momentum = gamma * momentum + (1 - gamma) * gradient
        mean = mean - beta * torch.linalg.solve(precision, momentum / (1 - gamma ** (step + 1)))
        torch.testing.assert_close(info.gradient, gradient, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(state.precision.dense(), precision, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(state.mean, mean, rtol=1e-10, atol=1e-11)
    assert state.step == 3
    losses = torch.stack([data_loss(case, w) for w in info.samples]).mean()
    assert info.loss == pytest.approx(losses.item() / len(case.x), rel=1e-10)


def test_momentum_that_changes_from_step_to_step():
    """m / c is the weighted average of past gradients, whatever γ was; β = 0 moves momentum and precision alone."""
    case = problem("gaussian")
    state, gradients, weights = method(case, GaussNewton(), Diagonal()).init(case.weights, 30.0), [], []
    for gamma, beta in ((0.9, 0.0), (0.5, 0.0), (0.8, 0.1)):
        own = method(case, GaussNewton(), Diagonal(), momentum=gamma)
        step = own.add(own.begin(state), data(case))
        gradient = own.gradient(step)
        before, (state, _) = state, own.finish(step, beta, 0.05)
        weights = [gamma * weight for weight in weights] + [1 - gamma]
        gradients.append(gradient)
        assert torch.equal(before.mean, state.mean) is (beta == 0)
        assert not torch.equal(before.precision.diagonal(), state.precision.diagonal())
    average = sum(w * g for w, g in zip(weights, gradients, strict=True)) / sum(weights)
    expected = before.mean - 0.1 * average / state.precision.diagonal()
    torch.testing.assert_close(state.mean, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("curvature", CURVATURES, ids=str)
@pytest.mark.parametrize("num_samples", [0, 2])
def test_several_batches_in_one_step_are_the_full_batch(structure, curvature, num_samples):
    case = problem("categorical", examples=7, outputs=3)
    own = method(case, curvature, structure, num_samples)
    state = own.init(case.weights, 20.0)
    parts = [data(case, slice(0, 3)), data(case, slice(3, 4)), data(case, slice(4, 7))]
    whole, _ = own.update(state, data(case), 0.1, generator=torch.Generator().manual_seed(1))
    split, info = own.update(state, parts, 0.1, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(split.mean, whole.mean, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(split.precision.dense(), whole.precision.dense(), rtol=1e-12, atol=1e-12)
    assert info.evaluation.count == 7


def test_a_step_in_parts_with_a_gradient_of_ones_own():
    """`begin`, `add` and `finish` are `update`; a gradient given to `finish` replaces ĝ; nothing given is changed."""
    case = problem("gaussian")
    own = method(case, EmpiricalFisher(), Diagonal(), 2)
    state = own.init(case.weights, 20.0)
    begun = own.begin(state, torch.Generator().manual_seed(1))
    step = own.add(own.add(begun, data(case, slice(0, 2))), data(case, slice(2, None)))
    whole, info = own.update(
        state, [data(case, slice(0, 2)), data(case, slice(2, None))], 0.1, generator=torch.Generator().manual_seed(1)
    )
    after, same = own.finish(step, 0.1)
    assert torch.equal(after.mean, whole.mean)
    assert torch.equal(after.precision.diagonal(), whole.precision.diagonal())
    assert torch.equal(same.gradient, info.gradient)
    clipped, _ = own.finish(step, 0.1, gradient=0.5 * info.gradient)
    torch.testing.assert_close(clipped.mean - state.mean, 0.5 * (after.mean - state.mean), rtol=1e-9, atol=1e-14)
    assert (begun.batches, begun.evaluation, state.step) == ((), None, 0)
    with pytest.raises(InputError, match="at least one batch"):
        own.finish(begun, 0.1)


def regularised(kind: str) -> Problem:
    """A prior that makes the loss convex enough for few steps, also with a diagonal precision."""
    case = problem(kind, examples=12, outputs=2)
    return replace(case, delta=(300 if kind == "gaussian" else 30) * case.delta)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("gaussian", (GaussNewton(), Dense())),
        ("gaussian", (EmpiricalFisher(), Diagonal())),
        ("bernoulli", (ExactHessian(), Dense())),
        ("categorical", (GaussNewton(), Dense())),
        ("categorical", (EmpiricalFisher(), Diagonal())),
    ],
    ids=["gaussian, OGGN", "gaussian, OGN", "bernoulli, ON", "categorical, OGGN", "categorical, OGN"],
)
def test_methods_at_the_mean_stop_at_a_minimiser(kind, row):
    """OGGN, ON, OGN: the gradient of the whole loss vanishes, at weights that another method finds too."""
    case = regularised(kind)
    own = method(case, *row)
    state = own.init(case.weights, 100.0)
    assert torch.func.grad(case.total_loss)(state.mean).norm() > 10
    for _ in range(130):
        state, _ = own.update(state, data(case), 0.4)
    assert torch.func.grad(case.total_loss)(state.mean).norm() < 1e-8
    torch.testing.assert_close(state.mean, case.at_minimum().weights, rtol=1e-7, atol=1e-9)
    curved = hessian(case, row[0], state.mean) + torch.diag(case.delta)
    expected = curved.diagonal() if row[1] == Diagonal() else curved
    found = state.precision.diagonal() if row[1] == Diagonal() else state.precision.dense()
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.slow
def test_oggn_stops_at_a_minimiser_of_a_network_that_fits():
    """The data decides, not the prior; GGN and Hessian differ, so it takes more steps."""
    case = problem("gaussian", examples=12, outputs=2)
    own = method(case)
    state = own.init(case.weights, 100.0)
    for _ in range(400):
        state, _ = own.update(state, data(case), 0.2)
    assert torch.func.grad(case.total_loss)(state.mean).norm() < 1e-8
    assert torch.func.hessian(case.total_loss)(state.mean).diagonal().min() > 0


def linear_case() -> tuple[nn.Module, Tensor, Tensor, Tensor, float]:
    generator = torch.Generator().manual_seed(0)
    module = nn.Linear(3, 2).double()
    x = torch.randn(10, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(10, 2, generator=generator, dtype=torch.float64)
    delta = torch.rand(8, generator=generator, dtype=torch.float64) + 0.5
    return module, x, y, delta, 0.4


def exact_posterior() -> tuple[Tensor, Tensor]:
    """Bayesian linear regression in closed form: mean and precision."""
    module, x, y, delta, sigma = linear_case()
    J = brute_force.jacobian(module, x).flatten(0, 1)
    precision = J.T @ J / sigma**2 + torch.diag(delta)
    return torch.linalg.solve(precision, J.T @ y.flatten() / sigma**2), precision


def linear_method(num_samples: int, structure=Dense(), **settings) -> tuple[OnlineNewton, Data, Tensor]:
    module, x, y, delta, sigma = linear_case()
    features = LayerwiseFeatures(network := Network(module, x), x)
    own = OnlineNewton(
        features, GaussianLikelihood(sigma), len(x), delta, GaussNewton(), structure, num_samples, **settings
    )
    return own, Data(x, y), network.weights


@pytest.mark.parametrize("curvature", [GaussNewton(), ExactHessian()], ids=str)
def test_voggn_on_a_linear_gaussian_model_is_bayesian_linear_regression(curvature):
    """One step of β = 1 with antithetic samples: what the samples add to the gradient cancels in a linear model."""
    own, batch, weights = linear_method(2, antithetic=True)
    own = replace(own, curvature=curvature)
    state, _ = own.update(own.init(weights, 3.0), batch, 1.0, generator=torch.Generator().manual_seed(0))
    mean, precision = exact_posterior()
    torch.testing.assert_close(state.mean, mean, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(state.precision.dense(), precision, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_voggn_converges_there_for_smaller_rates_and_plain_samples():
    """With β < 1 geometrically; with plain samples the mean fluctuates about the exact one, less for smaller rates."""
    mean, precision = exact_posterior()
    own, batch, weights = linear_method(2, antithetic=True)
    state = own.init(weights, 3.0)
    for _ in range(200):
        state, _ = own.update(state, batch, 0.2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(state.mean, mean, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(state.precision.dense(), precision, rtol=1e-10, atol=1e-10)

    own, batch, weights = linear_method(1)
    state, generator = own.init(weights, 3.0), torch.Generator().manual_seed(1)
    for step in range(400):
        state, _ = own.update(state, batch, 1 / (step + 1), generator=generator)
    # Now it is an average of 400 steps, each off by a draw from q: in units of the posterior, 1/√400 = 0.05.
    white = torch.linalg.cholesky(precision).T @ (state.mean - mean)
    assert white.abs().max() < 4 / 400**0.5


@pytest.mark.slow
def test_diagonal_voggn_finds_the_means_and_conditional_variances():
    """The best diagonal Gaussian of a Gaussian: its mean, and 1 / precision_pp."""
    own, batch, weights = linear_method(2, Diagonal(), antithetic=True)
    state = own.init(weights, 30.0)
    for _ in range(200):
        state, _ = own.update(state, batch, 0.5, generator=torch.Generator().manual_seed(0))
    mean, precision = exact_posterior()
    torch.testing.assert_close(state.mean, mean, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(state.precision.diagonal(), precision.diagonal(), rtol=1e-10, atol=1e-10)


def test_samples_come_from_q_and_in_pairs_if_antithetic():
    case = problem("gaussian")
    own = method(case, num_samples=4)
    state = own.init(case.weights, 4.0)
    many = replace(own, num_samples=40_000).sample(state, torch.Generator().manual_seed(0))
    white = (many - state.mean) * 2
    assert white.mean(0).abs().max() < 5 / 200
    covariance = white.T @ white / len(white)
    assert (covariance - torch.eye(len(covariance))).abs().max() < 5 * 2**0.5 / 200
    pairs = replace(own, antithetic=True).sample(state, torch.Generator().manual_seed(0))
    torch.testing.assert_close(pairs[:2] + pairs[2:], 2 * state.mean.expand(2, -1), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("beta", [0.0, -0.1, 1.1, float("nan")])
def test_rates_outside_of_the_interval(beta):
    case = problem("gaussian")
    own = method(case)
    state = own.init(case.weights, 1.0)
    with pytest.raises(InputError, match=r"beta: expected a learning rate in \(0, 1\]"):
        own.update(state, data(case), beta)
    with pytest.raises(InputError, match=r"beta: expected a learning rate in \(0, 1\]"):
        own.look(state, data(case), beta)


@pytest.mark.parametrize("precision", [0.0, -1.0, float("inf"), float("nan")])
def test_a_first_precision_that_is_none(precision):
    case = problem("gaussian")
    with pytest.raises(InputError, match="initial_precision"):
        method(case).init(case.weights, precision)


def test_settings_that_mean_nothing():
    case = problem("gaussian")
    for settings, word in (
        ({"num_samples": -1}, "num_samples"),
        ({"num_data": 0}, "num_data"),
        ({"momentum": 1.0}, "momentum"),
        ({"temperature": 0.0}, "temperature"),
        ({"num_samples": 3, "antithetic": True}, "even"),
    ):
        with pytest.raises(InputError, match=word):
            method(case, **settings)


def test_a_batch_larger_than_the_data():
    case = problem("gaussian", examples=6)
    own = method(case, num_data=5)
    with pytest.raises(InputError, match="a step sees 6"):
        own.update(own.init(case.weights, 1.0), data(case), 0.1)
    with pytest.raises(InputError, match="a step sees 6"):
        own.update(own.init(case.weights, 1.0), [data(case, slice(0, 3)), data(case, slice(3, 6))], 0.1)
    with pytest.raises(InputError, match="an empty list"):
        own.update(own.init(case.weights, 1.0), [], 0.1)


def test_a_state_of_another_structure():
    case = problem("gaussian")
    with pytest.raises(InputError, match="state: expected a dense precision"):
        method(case).update(method(case, structure=Diagonal()).init(case.weights, 1.0), data(case), 0.1)
    with pytest.raises(InputError, match="prior_precision: expected 17 numbers > 0"):
        method(replace(case, delta=-case.delta))


def test_a_loss_that_is_no_number_names_step_and_batch():
    case = problem("gaussian")
    own = method(case, num_data=9)
    state = replace(own.init(case.weights, 1.0), step=16)
    bad = Data(case.x[:3], torch.where(torch.arange(3)[:, None] == 1, float("inf"), case.y[:3]))
    with pytest.raises(
        DivergedError, match=r"Step 17, batch 2 of the step .*the loss of example 1 of it is NaN or infinite"
    ):
        own.update(state, [data(case), bad], 0.1)


def test_an_indefinite_hessian_says_what_to_do():
    case = problem("gaussian", examples=3)
    far = brute_force.with_weights(case.module, 3 * case.weights)
    case = replace(case, module=far, delta=torch.full_like(case.delta, 1e-6))
    own = method(case, ExactHessian())
    with pytest.raises(NotPositiveDefiniteError, match=r"Step 1: .*never negative \(VOGGN"):
        own.update(own.init(case.weights, 1e-3), data(case), 1.0)


def test_state_is_a_gaussian():
    case = problem("gaussian")
    state = method(case).init(case.weights, 4.0)
    assert isinstance(state, State)
    q = state.posterior()
    torch.testing.assert_close(q.variances(), torch.full_like(case.weights, 0.25))
