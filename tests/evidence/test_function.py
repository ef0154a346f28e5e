"""The evidence as a function of δ and σ against explicit determinants and densities in float64."""

from __future__ import annotations

import pytest
import torch

from dnn2gp import BlockDiagonal, Diagonal, FunctionSpace, GaussianLikelihood, Kronecker, WeightSpace, convert
from dnn2gp.evidence.per_layer import LayerEvidence
from dnn2gp.evidence.spectrum import Spectrum
from dnn2gp.inference import GaussNewtonStep
from dnn2gp.support.errors import InputError
from dnn2gp.weights import Expansion

from problems import KINDS, problem
from reference import brute_force

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
GAUSSIAN = ("gaussian", "gaussian per output")
# 2 inputs, width 3, 2 outputs: P = 17; N·K = 4 < P, and 24 > P
EXAMPLES = [2, 12]
SEVERAL = {"per_layer": True, "per_output": True}


def brute_force_evidence(case, kind, c, s):
    """log p(D|w) − ½ wᵀΔw − ½ log|I + …|, or log N(ỹ | 0, …) for a regression; c multiplies δ, s multiplies σ."""
    J, r, Lam = case.parts()
    w, delta = case.weights, case.delta * c
    flat = J.flatten(0, 1)
    if kind in GAUSSIAN:
        scale = s.expand(2).repeat(len(case.x))
        y_tilde = (J @ w - torch.linalg.solve(Lam, r.unsqueeze(-1)).squeeze(-1)).flatten()
        noise = torch.block_diag(*torch.linalg.inv(Lam)) * scale * scale[:, None]
        covariance = flat @ torch.diag(1 / delta) @ flat.T + noise
        return torch.distributions.MultivariateNormal(torch.zeros_like(y_tilde), covariance).log_prob(y_tilde)
    f = brute_force.outputs(case.module, case.x)
    loss = sum(case.loss(fi, yi) for fi, yi in zip(f, case.y, strict=True))
    normaliser = torch.lgamma(case.y + 1).sum() if kind == "poisson" else 0.0
    precision = torch.einsum("nkp,nkl,nlq->pq", J, Lam, J) + torch.diag(delta)
    return -loss - normaliser - 0.5 * (delta * w**2).sum() - 0.5 * torch.logdet(precision) + 0.5 * delta.log().sum()


def laplace_evidence(case, kind, c, s):
    """log p(D|w) − ½ wᵀΔw − ½ log|I + Δ⁻¹JᵀΛJ| at the weights, for a regression too; c and s as above."""
    if kind not in GAUSSIAN:
        return brute_force_evidence(case, kind, c, s)
    J, r, Lam = case.parts()
    delta, scale = case.delta * c, s.expand(2)
    Lam = Lam / (scale * scale[:, None])
    gap = torch.linalg.solve(case.parts()[2], r.unsqueeze(-1)).squeeze(-1)  # f − y
    noise = torch.distributions.MultivariateNormal(torch.zeros_like(gap), torch.linalg.inv(Lam))
    precision = torch.einsum("nkp,nkl,nlq->pq", J, Lam, J) + torch.diag(delta)
    fit = noise.log_prob(gap).sum() - 0.5 * (delta * case.weights**2).sum()
    return fit - 0.5 * torch.logdet(precision) + 0.5 * delta.log().sum()


def of(case, **choice):
    return convert(case.module, (case.x, case.y), case.likelihood, case.delta, mean=GaussNewtonStep(), **choice)


def check_value_and_gradient(function, expected, *points):
    """Values and gradients by autograd to 1e-9, at float64 numbers or vectors."""
    leaves = [torch.tensor(point, dtype=torch.float64, requires_grad=True) for point in points]
    value, wanted = function(*leaves), expected(*leaves)
    torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-9)
    for found, true in zip(torch.autograd.grad(value, leaves), torch.autograd.grad(wanted, leaves), strict=True):
        torch.testing.assert_close(found, true, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("examples", EXAMPLES)
def test_one_delta_and_one_sigma_come_from_the_spectrum(kind, examples):
    case = problem(kind, examples)
    function = of(case).evidence_function()
    assert isinstance(function, Spectrum)
    assert len(function.eigenvalues) <= min(examples * 2, 17)  # the smaller space
    one = torch.ones((), dtype=torch.float64)
    for scale in ((1.0, 1.0), (0.03, 0.4), (50.0, 3.0)):
        if kind in GAUSSIAN:
            check_value_and_gradient(function, lambda c, s: brute_force_evidence(case, kind, c, s), *scale)
        else:
            check_value_and_gradient(function, lambda c: brute_force_evidence(case, kind, c, one), scale[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("examples", EXAMPLES)
def test_one_delta_a_layer_and_one_sigma_an_output(kind, examples):
    case = problem(kind, examples)
    function = of(case).evidence_function(per_layer=True, per_output=True)
    assert isinstance(function, LayerEvidence)
    assert function.layers == ("0", "2")

    def spread(c):
        return torch.cat([c[0].expand(9), c[1].expand(8)])  # 2 → 3 with bias, then 3 → 2 with bias

    if kind in GAUSSIAN:
        check_value_and_gradient(
            function, lambda c, s: brute_force_evidence(case, kind, spread(c), s), [0.4, 3.0], [0.7, 1.9]
        )
    else:
        one = torch.ones((), dtype=torch.float64)
        check_value_and_gradient(function, lambda c: brute_force_evidence(case, kind, spread(c), one), [0.4, 3.0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("examples", EXAMPLES)
def test_laplaces_evidence_at_the_weights(kind, examples):
    """What tune.gradient climbs: one δ and σ, and one a layer and an output."""
    case = problem(kind, examples)
    one = torch.ones((), dtype=torch.float64)
    single, many = (of(case).evidence_function(**own, at_weights=True) for own in ({}, SEVERAL))

    def spread(c):
        return torch.cat([c[0].expand(9), c[1].expand(8)])

    if kind in GAUSSIAN:
        check_value_and_gradient(single, lambda c, s: laplace_evidence(case, kind, c, s), 0.3, 1.7)
        check_value_and_gradient(many, lambda c, s: laplace_evidence(case, kind, spread(c), s), [0.4, 3.0], [0.7, 1.9])
    else:
        check_value_and_gradient(single, lambda c: laplace_evidence(case, kind, c, one), 0.3)
        check_value_and_gradient(many, lambda c: laplace_evidence(case, kind, spread(c), one), [0.4, 3.0])


@pytest.mark.parametrize("examples", EXAMPLES)
def test_layers_without_outputs_and_outputs_without_layers(examples):
    case = problem("gaussian", examples)
    gp = of(case)
    layers, outputs = gp.evidence_function(per_layer=True), gp.evidence_function(per_output=True)
    assert (layers.num_precisions, layers.num_noises) == (2, 1)
    assert (outputs.num_precisions, outputs.num_noises) == (1, 2)
    shared = torch.tensor([0.4] * 9 + [3.0] * 8, dtype=torch.float64)
    two = torch.tensor([0.7, 1.9], dtype=torch.float64)
    one = torch.tensor(0.4, dtype=torch.float64)
    expected = brute_force_evidence(case, "gaussian", shared, two[0])
    torch.testing.assert_close(layers(torch.stack([one, 7.5 * one]), 0.7), expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(outputs(0.4, two), brute_force_evidence(case, "gaussian", one, two), rtol=1e-9, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("structure", [Diagonal(), BlockDiagonal(), Kronecker()])
@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_a_structure_has_the_evidence_of_its_own_posterior(kind, structure):
    """At the scales that a GP was made with, and at others: that of a GP made with those."""
    case = problem(kind, 12)
    scale = torch.cat([torch.full((9,), 0.3), torch.full((8,), 2.0)]).double()  # Kronecker takes one δ a layer
    settings = {"structure": structure, "mean": GaussNewtonStep()}
    function = convert(case.module, (case.x, case.y), case.likelihood, scale, **settings).evidence_function()
    for c, s in ((1.0, 1.0), (0.1, 1.7)):
        s = s if kind == "gaussian" else 1.0
        likelihood = GaussianLikelihood(0.3 * s) if kind == "gaussian" else case.likelihood
        twin = convert(case.module, (case.x, case.y), likelihood, c * scale, **settings)
        assert function(c, s).item() == pytest.approx(twin.evidence().value, rel=1e-9)


@pytest.mark.parametrize("space", [WeightSpace(), FunctionSpace()], ids=repr)
def test_it_is_the_evidence_of_the_gp(space):
    case = problem("gaussian", 12)
    gp = of(case, inference=space)
    assert gp.evidence_function()(1.0).item() == pytest.approx(gp.evidence().value, rel=1e-11)


def test_a_whole_grid_at_once():
    case = problem("gaussian", 12)
    function = of(case).evidence_function()
    c, s = torch.logspace(-2, 2, 5, dtype=torch.float64), torch.logspace(-1, 1, 3, dtype=torch.float64)
    found = function(c[:, None], s)
    assert found.shape == (5, 3)
    for row, column in ((0, 2), (3, 1)):
        assert found[row, column].item() == pytest.approx(function(c[row], s[column]).item(), rel=1e-13)


@pytest.mark.parametrize("width", [3, 20])  # P = 17 and 102 weights for 80 sites
@pytest.mark.parametrize("choice", [{}, {"per_layer": True}, {"per_output": True}])
def test_maximise_ends_where_the_gradient_vanishes_and_no_neighbour_is_better(width, choice):
    case = problem("gaussian", 40, width=width)
    function = of(case).evidence_function(**choice)
    best = function.maximise()
    assert function(best.precision_scale, best.noise_scale).item() == pytest.approx(best.value, rel=1e-12)
    assert best.at_edge == ()
    assert best.gradient < 1e-4
    for factor in (0.97, 1.03):
        assert function(best.precision_scale * factor, best.noise_scale).item() <= best.value + 1e-9
        assert function(best.precision_scale, best.noise_scale * factor).item() <= best.value + 1e-9


def test_mackays_fixed_point_holds_at_the_maximum():
    """δ = γ / wᵀw for a classifier: the stationary point in closed form."""
    case = problem("categorical", 12, outputs=3)
    gp = convert(case.module, (case.x, case.y), case.likelihood, 1.0, mean=GaussNewtonStep())
    function = gp.evidence_function()
    best = function.maximise()
    assert best.at_edge == ()
    gamma = function.degrees_of_freedom(best.precision_scale.item())
    assert best.precision_scale.item() == pytest.approx(gamma / case.weights.square().sum().item(), rel=1e-5)


def test_noise_is_left_alone_if_asked_or_if_there_is_none():
    regression, classes = problem("gaussian", 12), problem("categorical", 12)
    assert of(regression).evidence_function().maximise(noise=False).noise_scale.item() == 1
    assert of(classes).evidence_function().maximise().noise_scale.item() == 1


def test_an_edge_is_named():
    """Targets that the network fits with its linear part alone: the evidence asks for ever less noise."""
    case = problem("gaussian", 12)
    gp = convert(case.module, (case.x, brute_force.outputs(case.module, case.x)), case.likelihood, 1.0)
    assert gp.evidence_function().maximise(bounds=(1e-2, 1e2)).at_edge


def test_what_has_no_such_function_is_refused():
    case = problem("categorical", 6)
    gp = of(case)
    with pytest.raises(InputError, match="only a Gaussian likelihood has a noise"):
        gp.evidence_function()(1.0, 2.0)
    with pytest.raises(InputError, match="expected numbers > 0; got -1"):
        gp.evidence_function()(-1.0)
    with pytest.raises(InputError, match=r"structure=Dense\(\)"):
        of(case, structure=Diagonal()).evidence_function(per_layer=True)
    with pytest.raises(InputError, match="gradient features"):
        of(case, expansion=Expansion.empirical_fisher).evidence_function(per_layer=True)


def test_gradient_features_have_a_spectrum_too():
    """Empirical Fisher: log p(D|w) − ½ c wᵀΔw − ½ log |I + Σ ∇ℓ∇ℓᵀ/(cδ)|."""
    case = problem("categorical", 6)
    J, r, _ = case.parts()
    gradients = torch.einsum("nkp,nk->np", J, r)
    gp = of(case, expansion=Expansion.empirical_fisher)
    delta = 0.3 * case.delta
    ratio = torch.logdet(gradients.T @ gradients + torch.diag(delta)) - delta.log().sum()
    expected = gp.model.expansion.log_likelihood - 0.5 * (delta * case.weights**2).sum() - 0.5 * ratio
    torch.testing.assert_close(gp.evidence_function()(0.3), expected, rtol=1e-9, atol=0)
