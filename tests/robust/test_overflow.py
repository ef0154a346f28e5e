"""Numbers that overflow are announced; targets and likelihoods that do not fit the network are refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from dnn2gp import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    FunctionSpace,
    GaussianLikelihood,
    Kronecker,
    PoissonLikelihood,
    WeightSpace,
    convert,
)
from dnn2gp.inference import GaussNewtonStep
from dnn2gp.support.errors import InputError, MemoryBudgetError, NotFiniteError, NotPositiveDefiniteError

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
X = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))


def linear(outputs: int = 1, bias: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Linear(2, outputs)
    nn.init.constant_(module.bias, bias)
    return module


def test_rates_that_overflow():
    with pytest.raises(NotFiniteError, match="float32"):
        convert(linear(bias=95.0), (X, torch.ones(8, 1)), PoissonLikelihood(), 1.0)


def test_noise_that_is_too_small():
    with pytest.raises(NotFiniteError, match="σ"):
        convert(linear(), (X, torch.ones(8, 1)), GaussianLikelihood(1e-20), 1.0)


def test_inputs_at_which_the_prediction_overflows():
    gp = convert(linear(), (X, torch.ones(8, 1)), GaussianLikelihood(1.0), 1.0)
    assert gp.predict(X).std.isfinite().all()
    with pytest.raises(NotFiniteError, match="input 0"):
        gp.predict(torch.full((1, 2), 3e38))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", [0.6, 1.1])
def test_rates_that_overflow_at_other_inputs(dtype, share):
    """The log rate f is finite, but e^f (share 1.1) or its square, the variance (share 0.6), is not."""
    x = X[:, :1].to(dtype)
    module = nn.Linear(1, 1).to(dtype)
    nn.init.ones_(module.weight)
    nn.init.zeros_(module.bias)
    gp = convert(module, (x, x.exp().round()), PoissonLikelihood(), 1.0, mean=GaussNewtonStep())
    far = gp.predict(torch.full((1, 1), share * math.log(torch.finfo(dtype).max), dtype=dtype))
    assert far.latent_mean.isfinite().all()
    names = ["epistemic", "epistemic_covariance", "variance", "std"]
    names += ["mean", "aleatoric", "aleatoric_covariance"] if share > 1 else []
    for name in names:
        with pytest.raises(NotFiniteError, match="input 0"):
            getattr(far, name)
    assert share > 1 or far.aleatoric.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counts_that_no_integer_holds(dtype):
    """torch draws negative counts there."""
    rates = torch.tensor([[42.9]], dtype=dtype)
    assert (PoissonLikelihood().sample(rates, 5, None) > 0).all()
    with pytest.raises(NotFiniteError, match="rate"):
        PoissonLikelihood().sample(rates + 1, 5, None)


def test_variances_that_overflow_together():
    """Each of the two variances is finite in float32, but their sum is not."""
    prediction = convert(linear(), (X, torch.ones(8, 1)), GaussianLikelihood(1.5e19), 1.0).predict(X)
    wide = replace(prediction, latent_covariance=torch.full((8, 1, 1), 2.5e38, dtype=torch.float64))
    assert wide.aleatoric.isfinite().all()
    assert wide.epistemic.isfinite().all()
    with pytest.raises(NotFiniteError, match="variance"):
        _ = wide.std


def test_kronecker_factors_that_overflow():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    with torch.no_grad():
        module[2].weight.mul_(1e30)
    with pytest.raises(NotFiniteError, match="Kronecker"):
        convert(module, (X, torch.ones(8, 1)), GaussianLikelihood(1.0), 1.0, structure=Kronecker())


class Root(nn.Module):
    """√|w x|, whose derivative at x = 0 is NaN."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return (self.weight * x).abs().sqrt()


@pytest.mark.parametrize("inference", [WeightSpace(), FunctionSpace()], ids=repr)
def test_derivatives_that_are_no_numbers_at_other_inputs(inference):
    """Whatever is asked of the GP there."""
    x = 0.5 + X[:, :1].abs()
    gp = convert(Root(), (x, x), GaussianLikelihood(1.0), 1.0, inference=inference)
    zero = torch.cat([x[:1], torch.zeros(1, 1)])
    asked = (
        gp.predict,
        gp.mean,
        gp.covariance,
        gp.kernel.full,
        gp.kernel.trace,
        gp.kernel.diagonal,
        gp.sample_functions(2),
        lambda inputs: gp.covariance(x, inputs),
        lambda inputs: gp.condition((inputs, inputs)).predict(x),
    )
    for ask in asked:
        with pytest.raises((NotFiniteError, NotPositiveDefiniteError)):
            ask(zero)


@pytest.mark.parametrize("count", [2**62, 10**13])
def test_more_samples_than_memory(count):
    gp = convert(linear(), (X, torch.ones(8, 1)), GaussianLikelihood(1.0), 1.0)
    prediction = gp.predict(X)
    for draw in (gp.sample_functions, prediction.sample, prediction.sample_latent, prediction.monte_carlo):
        with pytest.raises(MemoryBudgetError, match="Draw"):
            draw(count)


def test_predictions_with_another_likelihood():
    gp = convert(linear(), (X, torch.ones(8, 1)), GaussianLikelihood(1.0), 1.0)
    assert gp.predict(X, GaussianLikelihood(2.0)).aleatoric[0] == 4
    for other in (BernoulliLikelihood(), GaussianLikelihood, "gaussian"):
        with pytest.raises(InputError, match="likelihood"):
            gp.predict(X, other)  # type: ignore[arg-type]


def test_a_likelihood_made_while_the_default_device_is_meta():
    with torch.device("meta"):
        likelihood = GaussianLikelihood(2.0)
    assert convert(linear(), (X, torch.ones(8, 1)), likelihood, 1.0).predict(X).aleatoric[0] == 4


class Grid(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 6)

    def forward(self, x):
        return self.layer(x).view(-1, 2, 3)


def test_targets_with_the_axes_of_other_outputs():
    with pytest.raises(InputError, match="targets"):
        convert(Grid(), (X, torch.zeros(8, 3, 2)), GaussianLikelihood(1.0), 1.0)


@pytest.mark.parametrize("shape", [(8, 2, 3), (8, 6), (8, 1, 2, 3)])
def test_targets_that_flatten_like_the_outputs(shape):
    convert(Grid(), (X, torch.zeros(shape)), GaussianLikelihood(1.0), 1.0)


@pytest.mark.parametrize("count", [0, True, 2**63])
def test_counts_that_are_none(count):
    prediction = convert(linear(), (X, torch.ones(8, 1)), GaussianLikelihood(1.0), 1.0).predict(X)
    for draw in (prediction.monte_carlo, prediction.sample_latent, prediction.sample):
        with pytest.raises(InputError, match="num_samples"):
            draw(count)


def test_noise_that_no_float_can_hold():
    with pytest.raises(InputError, match="sigma"):
        GaussianLikelihood(10**400)


def test_more_data_of_another_likelihood():
    gp = convert(linear(3), (X, torch.zeros(8, 3)), GaussianLikelihood(1.0), 1.0)
    gp.condition((X, torch.zeros(8, 3)), GaussianLikelihood(0.5))
    with pytest.raises(InputError, match="likelihood"):
        gp.condition((X, torch.zeros(8, dtype=torch.long)), CategoricalLikelihood())
