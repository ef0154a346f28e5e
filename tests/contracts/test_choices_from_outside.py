"""A structure and an inference from outside the package, with options: those that CONTRIBUTING.md shows."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from dnn2gp import CategoricalLikelihood, GaussianProcess, WeightSpace, convert, diagnose, load, save
from dnn2gp.inference import Inference, NetworkOutput
from dnn2gp.weights.structures import Structure

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
NUM_WEIGHTS = 4 * 5 + 4 + 3 * 4 + 3


@pytest.fixture(scope="module")
def outside() -> Iterator[ModuleType]:
    """The first block of each of the two sections, as a user's module; unregistered afterwards."""
    module = ModuleType("outside")
    sys.modules["outside"] = module
    for title in ("## A new structure", "## A new inference"):
        section = CONTRIBUTING.read_text(encoding="utf-8").split(title)[1]
        block = re.search(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
        assert block is not None
        exec(compile(block[1], title, "exec"), module.__dict__)
    yield module
    del sys.modules["outside"], Inference.kinds[module.LeadingDirections.name], Structure.kinds[module.Isotropic.name]


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(30, 5, dtype=torch.float64, generator=generator), torch.arange(30) % 3


def converted(network: nn.Module, data: tuple[Tensor, Tensor], **choices: object) -> GaussianProcess:
    return convert(network, data, CategoricalLikelihood(), 0.5, **choices)  # type: ignore[arg-type]


def test_all_directions_are_the_exact_posterior(outside, network, data) -> None:
    every, exact = (
        converted(network, data, inference=inference, mean=NetworkOutput())
        for inference in (outside.LeadingDirections(rank=NUM_WEIGHTS), WeightSpace())
    )
    x = data[0][:4]
    assert every.network.num_weights == NUM_WEIGHTS
    torch.testing.assert_close(every.covariance(x), exact.covariance(x))
    torch.testing.assert_close(every.predict(x).latent_covariance, exact.predict(x).latent_covariance)
    torch.testing.assert_close(every.inference.weight_variances(), exact.inference.weight_variances())
    assert every.inference.log_det_ratio().item() == pytest.approx(exact.inference.log_det_ratio().item(), rel=1e-10)


def test_fewer_directions_leave_more_variance(outside, network, data) -> None:
    some, exact = (
        converted(network, data, inference=inference, mean=NetworkOutput())
        for inference in (outside.LeadingDirections(rank=3), WeightSpace())
    )
    ratio = some.inference.weight_variances() / exact.inference.weight_variances()
    assert ratio.min() > 1 - 1e-10
    assert ratio.max() > 1.01
    assert repr(outside.LeadingDirections(rank=3)) == "LeadingDirections(rank=3)"


def test_samples_have_the_variances(outside, network, data) -> None:
    posterior = converted(network, data, inference=outside.LeadingDirections(rank=3)).inference
    draws = posterior.sample_weights(20_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws.var(0), posterior.weight_variances(), rtol=0.06, atol=0)


@pytest.mark.parametrize("kind", ["inference", "structure"])
def test_every_question_is_answered(outside, network, data, kind, tmp_path) -> None:
    """predict, evidence, δ by the evidence, costs, diagnose, save and load, with the options kept."""
    choice = outside.LeadingDirections(rank=5) if kind == "inference" else outside.Isotropic(power=0.5)
    gp = converted(network, data, **{kind: choice})
    x = data[0][:3]
    variance = gp.predict(x).epistemic
    assert variance.min() > 0
    assert gp.evidence().value < 0
    tuned = convert(network, data, CategoricalLikelihood(), **{kind: choice})
    assert tuned.tuning is not None
    assert tuned.evidence().value >= gp.evidence().value - 1e-8
    assert outside.LeadingDirections.name in [cost.space for cost in gp.costs()]
    assert str(diagnose(gp))
    save(gp, tmp_path / "gp.safetensors")
    again = load(tmp_path / "gp.safetensors", network)
    assert again.inference.method == gp.inference.method
    torch.testing.assert_close(again.predict(x).epistemic, variance, rtol=1e-12, atol=0)  # another memory order


def test_it_is_never_chosen_unasked(outside, network, data) -> None:
    assert outside.LeadingDirections.name in Inference.kinds
    assert outside.Isotropic.name in Structure.kinds
    assert converted(network, data).inference.exact
