"""Theorem 2: a step of VOGGN or OGGN is exact inference in the linear model with prior (m_t, V_t), anchored at μ_t."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dnn2gp import FunctionSpace, WeightSpace
from dnn2gp.features import LayerwiseFeatures
from dnn2gp.gp import convert_step
from dnn2gp.inference import LinearModel
from dnn2gp.network import Network
from dnn2gp.network.data import Data
from dnn2gp.weights import OnlineNewton
from dnn2gp.weights.curvature import EmpiricalFisher, GaussNewton
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.online_newton import State
from dnn2gp.weights.structures import Dense, DensePrecision

from problems import Problem, problem
from reference import brute_force

CASES = [("gaussian", 1), ("gaussian", 3), ("gaussian per output", 3), ("bernoulli", 1), ("categorical", 3)]
LINKS = {"gaussian": lambda f: f, "bernoulli": torch.sigmoid, "categorical": lambda f: f.softmax(-1)}
GAUSS_NEWTON = GaussNewton()
METHODS = {"OGGN": 0, "VOGGN, S = 1": 1, "VOGGN, S = 3": 3}


def method(case: Problem, num_samples: int, curvature=GAUSS_NEWTON, num_data: int | None = None) -> OnlineNewton:
    features = LayerwiseFeatures(Network(case.module, case.x), case.x)
    count = len(case.x) if num_data is None else num_data
    return OnlineNewton(features, case.likelihood, count, case.delta, curvature, Dense(), num_samples)


def some_state(case: Problem, seed: int = 5) -> State:
    """A q_t with correlations, whose samples lie far enough from its mean to tell the two anchors apart."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(len(case.weights), len(case.weights) + 3, generator=generator, dtype=torch.float64)
    precision = root @ root.T + 5 * torch.eye(len(case.weights), dtype=torch.float64)
    return State(case.weights, DensePrecision(precision), torch.zeros_like(case.weights))


def parts_at(case: Problem, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """J, r, Λ at other weights, by brute force."""
    module = brute_force.with_weights(case.module, weights)
    f = brute_force.outputs(module, case.x)
    return brute_force.jacobian(module, case.x), *brute_force.residual_and_precision(case.loss, f, case.y)


def stepped(case: Problem, state: State, samples: Tensor, beta: float, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """The update of Appendix A.2 with Monte Carlo samples, written out: μ_{t+1} and Σ_{t+1}⁻¹."""
    gradient, hessian = torch.zeros_like(case.weights), torch.zeros(len(case.weights), len(case.weights)).double()
    for weights in samples:
        J, r, Lam = parts_at(case, weights)
        gradient += torch.einsum("nkp,nk->p", J, r) / len(samples)
        hessian += torch.einsum("nkp,nkl,nlq->pq", J, Lam, J) / len(samples)
    precision = (1 - beta) * state.precision.dense() + beta * (scale * hessian + torch.diag(case.delta))
    move = torch.linalg.solve(precision, scale * gradient + case.delta * state.mean)
    return state.mean - beta * move, precision


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "outputs", "num_samples", "beta"),
    [
        *((*case, count, 0.6) for case in CASES for count in METHODS.values()),
        *(("categorical", 3, count, beta) for count in METHODS.values() for beta in (0.05, 1.0)),
    ],
)
def test_a_step_is_the_posterior_of_its_linear_model(kind, outputs, num_samples, beta):
    case = problem(kind, outputs=outputs)
    state = some_state(case)
    after, info = method(case, num_samples).update(
        state, Data(case.x, case.y), beta, generator=torch.Generator().manual_seed(1)
    )
    if num_samples:
        assert (info.samples - state.mean).norm(dim=1).min() > 0.1  # the anchor is not the sample
    mean, precision = stepped(case, state, info.samples, beta)
    torch.testing.assert_close(after.mean, mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(after.precision.dense(), precision, rtol=1e-9, atol=1e-10)

    model = LinearModel.from_step(state, info, beta)
    posterior = WeightSpace().infer(model).gaussian()
    torch.testing.assert_close(posterior.mean, mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(posterior.precision.dense(), precision, rtol=1e-9, atol=1e-10)
    for space in (WeightSpace(), FunctionSpace()):
        gp = convert_step(state, info, inference=space)
        torch.testing.assert_close(gp.inference.mean, mean, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("num_samples", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize(("kind", "outputs"), CASES[:4])
def test_the_linear_model_is_that_of_appendix_a(kind, outputs, num_samples):
    """ỹ, J_t, the noise S (βΛ)⁻¹ and (m_t, V_t) as printed, and Bayesian regression on them, with explicit inverses."""
    beta, case = 0.3, problem(kind, outputs=outputs)
    state = some_state(case)
    generator = torch.Generator().manual_seed(2)
    after, info = method(case, num_samples).update(state, Data(case.x, case.y), beta, generator=generator)
    S = len(info.samples)
    parts = [parts_at(case, weights) for weights in info.samples]
    J = torch.cat([part[0] for part in parts], 1)
    outputs_tilde = torch.cat(
        [J_s @ state.mean - torch.linalg.solve(Lam, r.unsqueeze(-1)).squeeze(-1) for J_s, r, Lam in parts], 1
    )
    noise_precision = torch.stack([torch.block_diag(*(part[2][i] for part in parts)) for i in range(len(case.x))])
    V = torch.linalg.inv((1 - beta) * state.precision.dense() + beta * torch.diag(case.delta))
    m = (1 - beta) * V @ state.precision.dense() @ state.mean

    model = LinearModel.from_step(state, info, beta)
    torch.testing.assert_close(model.prior.mean, m, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(model.prior.precision.dense(), torch.linalg.inv(V), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model.transformed_data.outputs, outputs_tilde, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(
        model.transformed_data.noise_precision, beta / S * noise_precision, rtol=1e-9, atol=1e-11
    )

    precision = torch.linalg.inv(V) + torch.einsum("nkp,nkl,nlq->pq", J, beta / S * noise_precision, J)
    right = torch.linalg.inv(V) @ m + torch.einsum("nkp,nkl,nl->p", J, beta / S * noise_precision, outputs_tilde)
    torch.testing.assert_close(after.mean, torch.linalg.solve(precision, right), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(after.precision.dense(), precision, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("kind", "outputs"), CASES)
def test_the_printed_form_of_the_main_text_fails(kind, outputs):
    """The main text anchors at the sample: ỹ = J w_t − Λ⁻¹r and m_t = (1−β) V Σ_t⁻¹ w_t.

    The update moves the *mean* μ_t, and its term Σᵢ ∇²ℓᵢ μ_t (Appendix A.2) multiplies μ_t, not the sample at which
    the Hessian was taken. With w_t ≠ μ_t the posterior mean of the printed model is off by about w_t − μ_t; only
    where the method looks at the mean (OGGN) do the two agree.
    """
    beta, case = 0.3, problem(kind, outputs=outputs)
    state = some_state(case)
    for num_samples, agrees in ((1, False), (0, True)):
        generator = torch.Generator().manual_seed(3)
        after, info = method(case, num_samples).update(state, Data(case.x, case.y), beta, generator=generator)
        sample = info.samples[0]
        model = LinearModel(
            info.expansion.weighted(beta).anchored(sample),
            info.method.prior(State(sample, state.precision, state.momentum), beta),
        )
        printed = WeightSpace().infer(model).gaussian()
        torch.testing.assert_close(printed.precision.dense(), after.precision.dense(), rtol=1e-9, atol=1e-10)
        gap = (printed.mean - after.mean).norm() / (sample - state.mean).norm().clamp(min=1e-30)
        if agrees:
            torch.testing.assert_close(printed.mean, after.mean, rtol=1e-9, atol=1e-10)
        else:
            assert gap > 0.1


@pytest.mark.parametrize("num_samples", METHODS.values(), ids=METHODS)
def test_minibatches_stand_for_all_the_data(num_samples):
    """M of N examples, scaled by N / M, in the step and in the linear model."""
    case = problem("categorical", outputs=3)
    state, beta = some_state(case), 0.4
    generator = torch.Generator().manual_seed(4)
    own = method(case, num_samples, num_data=60)
    after, info = own.update(state, Data(case.x, case.y), beta, generator=generator)
    mean, precision = stepped(case, state, info.samples, beta, scale=60 / len(case.x))
    torch.testing.assert_close(after.mean, mean, rtol=1e-9, atol=1e-10)
    posterior = WeightSpace().infer(LinearModel.from_step(state, info)).gaussian()
    torch.testing.assert_close(posterior.mean, mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(posterior.precision.dense(), precision, rtol=1e-9, atol=1e-10)


def test_with_gradient_features_it_is_the_step_of_the_empirical_fisher():
    """Eq. (5) holds for φ = ∇ℓᵢ, v = D = 1 as well, and so does the theorem."""
    case = problem("categorical", outputs=3)
    state, beta = some_state(case), 0.4
    own = method(case, 1, curvature=EmpiricalFisher())
    after, info = own.update(state, Data(case.x, case.y), beta, generator=torch.Generator().manual_seed(4))
    posterior = WeightSpace().infer(LinearModel.from_step(state, info, expansion=Expansion.empirical_fisher)).gaussian()
    torch.testing.assert_close(posterior.mean, after.mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(posterior.precision.dense(), after.precision.dense(), rtol=1e-9, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("num_samples", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize(("kind", "outputs"), [("gaussian", 1), ("gaussian per output", 3)])
def test_evidence_of_the_linear_model(kind, outputs, num_samples):
    """log N(ỹ | J m_t, S(βΛ)⁻¹ + J V_t Jᵀ), densely."""
    beta, case = 0.3, problem(kind, outputs=outputs)
    state = some_state(case)
    own = method(case, num_samples)
    _, info = own.update(state, Data(case.x, case.y), beta, generator=torch.Generator().manual_seed(5))
    model = LinearModel.from_step(state, info, beta)
    data = model.transformed_data
    J = torch.cat([parts_at(case, weights)[0] for weights in info.samples], 1).flatten(0, 1)
    V = torch.linalg.inv(model.prior.precision.dense())
    covariance = J @ V @ J.T + torch.block_diag(*torch.linalg.inv(data.noise_precision))
    expected = torch.distributions.MultivariateNormal(J @ model.prior.mean, covariance).log_prob(data.outputs.flatten())
    for space in (WeightSpace(), FunctionSpace()):
        found = convert_step(state, info, inference=space).evidence()
        assert found.value == pytest.approx(expected.item(), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("num_samples", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize(("kind", "outputs"), CASES)
def test_predictions_are_the_average_of_the_maps(kind, outputs, num_samples):
    """Appendix B.3: y = (1/S) Σ_s [h(f_s) + D_s (ỹ_s − J_s μ_t)], with the posterior of the linear model."""
    beta, case = 0.5, problem(kind, outputs=outputs)
    state = some_state(case)
    own = method(case, num_samples)
    after, info = own.update(state, Data(case.x, case.y), beta, generator=torch.Generator().manual_seed(6))
    covariance, link = torch.linalg.inv(after.precision.dense()), LINKS[kind.split()[0]]
    means, slopes, features = [], [], []
    for weights in info.samples:
        module = brute_force.with_weights(case.module, weights)
        f, J = brute_force.outputs(module, case.x_test), brute_force.jacobian(module, case.x_test)
        D = torch.stack([torch.func.jacrev(lambda a: link(a.unsqueeze(0)).squeeze(0))(each) for each in f])
        means.append(link(f) + torch.einsum("nkl,nlp,p->nk", D, J, after.mean - state.mean))
        slopes.append(D @ J)
        features.append(J)
    slope = torch.stack(slopes).mean(0)
    for space in (WeightSpace(), FunctionSpace()):
        gp = convert_step(state, info, inference=space)
        found = gp.predict(case.x_test)
        torch.testing.assert_close(found.mean.flatten(1), torch.stack(means).mean(0), rtol=1e-8, atol=1e-9)
        expected = slope @ covariance @ slope.mT
        torch.testing.assert_close(found.epistemic_covariance, expected, rtol=1e-8, atol=1e-9)
        J = torch.stack(features).mean(0)
        torch.testing.assert_close(gp.mean(case.x_test).flatten(1), J @ after.mean, rtol=1e-8, atol=1e-8)
        joint = torch.einsum("nkp,pq,mlq->nkml", J, covariance, J)
        torch.testing.assert_close(gp.covariance(case.x_test), joint, rtol=1e-8, atol=1e-9)
