"""Settings out of range or of the wrong type: refused in words, with what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from dnn2gp import (
    CustomLikelihood,
    Diagonal,
    FunctionSpace,
    GaussianLikelihood,
    WeightSpace,
    convert,
    precision_from_weight_decay,
    save,
)
from dnn2gp.gp import sample_network
from dnn2gp.support.errors import InputError, NetworkError, NotAMinimumWarning, NotPositiveDefiniteError
from dnn2gp.weights import DensePrecision, DiagonalPrecision
from dnn2gp.weights.linalg import cholesky

from robust.support import DELTA, NOISE, mlp, regression, untouched

quiet = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


# Wrong types, in an interpreter of their own --------------------------------------------------------------------------

TYPES = {
    "optimizer: weights": ("InputError", "network: expected"),
    "optimizer: likelihood": ("InputError", "likelihood: expected"),
    "optimizer: samples": ("InputError", "num_samples: expected"),
    "optimizer: rate": ("InputError", "lr: expected"),
    "optimizer: targets": ("InputError", "targets"),
    "tune: network": ("InputError", "network: expected"),
    "tune: likelihood": ("InputError", "likelihood: expected"),
    "tune: settings": ("InputError", "settings: expected"),
    "tune: fit": ("InputError", "fit: expected"),
    "tune: objective": ("InputError", "objective: expected"),
    "random network": ("NetworkError", "not deterministic in eval mode"),
    "network: class": ("NetworkError", "expected a torch.nn.Module; got the class Linear. Pass the trained module"),
    "network: none": ("NetworkError", "expected a torch.nn.Module; got NoneType"),
    "network: function": ("NetworkError", "expected a torch.nn.Module; got function"),
    "likelihood: string": (
        "InputError",
        "expected an instance of a dnn2gp likelihood, e.g. GaussianLikelihood(sigma=0.1) or CategoricalLikelihood()",
    ),
    "likelihood: class": ("InputError", "or CategoricalLikelihood(); got the class"),
    "likelihood: loss": ("InputError", "got MSELoss"),
    "prior: string": (
        "InputError",
        "expected \"evidence\", a number, a mapping from layer to number, or a tensor; got '1'",
    ),
    "prior: true": ("InputError", "got True. Use e.g. prior_precision=1.0"),
    "mean: string": ("InputError", "mean: expected"),
    "mean: class": ("InputError", "Write mean=NetworkOutput()"),
    "mean: inference": ("InputError", "mean: expected"),
    "prior: evidence at a string": ("InputError", "at: expected"),
    "prior: list": ("InputError", "got [1.0, 2.0]"),
    "prior: array": ("InputError", "got array([1., 1.])"),
    "prior: string in a mapping": ("InputError", "expected a number for the layer '2'; got 'x'"),
    "prior: none in a mapping": ("InputError", "expected a number for the layer '2'; got None"),
    "structure: string": ("InputError", "structure: expected"),
    "structure: matrix": ("InputError", "structure: expected"),
    "structure: class": ("InputError", "Write structure=Kronecker()"),
    "structure: inference": ("InputError", "structure: expected"),
    "inference: string": ("InputError", "inference: expected"),
    "inference: class": ("InputError", "Write inference=FunctionSpace()"),
    "inference: structure": ("InputError", "inference: expected"),
    "budget: string": ("InputError", "expected a positive number of bytes, e.g. 4e9 for 4 GB; got '4GB'"),
    "budget: nan": ("InputError", "expected a positive number of bytes, e.g. 4e9 for 4 GB; got nan"),
    "budget: true": ("InputError", "expected a positive number of bytes, e.g. 4e9 for 4 GB; got True"),
    "predict: array": ("InputError", "got ndarray. Convert arrays with torch.as_tensor(array)"),
    "predict: none": ("InputError", "expected a torch.Tensor, or a tuple, list or dict of tensors; got NoneType"),
    "predict: list of numbers": ("InputError", "got list"),
    "engine: vector": (
        "InputError",
        "expected a P × S tensor with one vector of all 26 weights in each column",
    ),
    "engine: short vector": (
        "InputError",
        "got a tensor of shape (7, 1) and dtype float64. For one vector, use vector.unsqueeze(-1)",
    ),
    "engine: cotangents": ("InputError", "cotangents: expected a tensor of shape N × Q × S = (10, 2, S)"),
    "engine: root": ("InputError", "got a tensor of shape (10, 3, 1) and dtype float64"),
    "engine: number": ("InputError", "precision: expected the precision of the weights"),
    "engine: array": ("InputError", "got ndarray. Convert arrays with torch.as_tensor(array)"),
    "engine: width": ("InputError", "inputs: the network's forward fails on float64 of shape (1, 2)"),
    "prior: 10**400": ("InputError", "prior_precision"),
    "prior: fraction": ("InputError", "prior_precision"),
    "prior: 10**400 in a mapping": ("InputError", "prior_precision"),
    "budget: 10**400": ("InputError", "memory_budget"),
    "data: sparse": ("InputError", "inputs"),
    "data: rows": ("InputError", "inputs"),
    "data: sparse targets": ("InputError", "targets"),
    "data: meta": ("InputError", "inputs"),
    "data: meta targets": ("InputError", "targets"),
    "predict: sparse": ("InputError", "inputs"),
    "predict: meta": ("InputError", "inputs"),
    "predict: nested": ("InputError", "inputs"),
    "device: meta": ("InputError", "default device"),
    "diagnose: number": ("InputError", "gp"),
    "diagnose: probes": ("InputError", "num_probes"),
    "diagnose: subset": ("InputError", "subset"),
    "diagnose: generator": ("InputError", "generator"),
    "count: functions": ("InputError", "num_samples"),
    "count: networks": ("InputError", "num_samples"),
    "count: weights": ("InputError", "num_samples"),
    "count: width": ("InputError", "width"),
    "count: depth": ("InputError", "depth"),
    "count: true": ("InputError", "width"),
    "count: repeats": ("InputError", "repeats"),
    "count: jobs": ("InputError", "num_jobs"),
    "count: trials": ("InputError", "num_trials"),
    "count: rounds": ("InputError", "max_rounds"),
    "count: every": ("InputError", "every"),
    "count: examples": ("InputError", "num_examples"),
    "count: restarts": ("InputError", "restarts"),
    "count: widths": ("InputError", "width"),
    "count: epochs": ("InputError", "epochs"),
    "count: digits": ("InputError", "num_train"),
    "seed: train": ("InputError", "seed"),
    "seed: demo": ("InputError", "seed"),
    "seed: study": ("InputError", "seed"),
    "seed: negative": ("InputError", "seed"),
    "seed: optimizer": ("InputError", "seed"),
    "load: network": ("NetworkError", "expected a torch.nn.Module; got str"),
    "load: function": ("NetworkError", "expected a torch.nn.Module; got NoneType"),
    "load: likelihood": ("InputError", "expected a dnn2gp likelihood (an instance); got 'gaussian'"),
}
GOOD = [
    "good",
    "good: integer prior",
    "good: NumPy prior",
    "good: prior by the evidence",
    "good: budget as a float",
    "good: loader",
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, tuple[str, str]]:
    path = tmp_path_factory.mktemp("plain") / "gp.safetensors"
    with pytest.warns(NotAMinimumWarning):
        save(convert(mlp(), regression(), NOISE, DELTA), path)
    program = [sys.executable, str(Path(__file__).with_name("plain.py")), str(path)]
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("case", TYPES)
def test_wrong_types(case: str, outcomes) -> None:
    error, message = TYPES[case]
    assert outcomes[case][0] == error, outcomes[case]
    assert message in outcomes[case][1]


@pytest.mark.parametrize("case", [*GOOD, "good: random numbers in vain"])
def test_right_types(case: str, outcomes) -> None:
    assert outcomes[case] == ["nothing", ""]


class Kinked(nn.Module):
    """‖Wx‖ of each row of W, whose derivative at x = 0 is NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2, bias=False).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).square().sqrt()


@quiet
@pytest.mark.filterwarnings("ignore:.*Error detected in:UserWarning", "ignore:Anomaly Detection:UserWarning")
def test_a_derivative_that_is_no_number_under_anomaly_detection() -> None:
    module, (x, y) = Kinked(), regression()
    with torch.autograd.set_detect_anomaly(True):
        gp = convert(module, (x, y), NOISE, DELTA)  # nothing is wrong at these inputs
        for call in (lambda: convert(module, (x * 0, y), NOISE, DELTA), lambda: gp.predict(x * 0)):
            with untouched(module), pytest.raises(NetworkError, match=r"network.*returned nan"):
                call()


# The prior ------------------------------------------------------------------------------------------------------------

PRIORS = {
    "zero": (0.0, r"expected δ > 0 and finite in torch.float64; got 0 \(1 of 1"),
    "negative": (-1.0, "got -1"),
    "nan": (float("nan"), "got nan"),
    "infinite": (float("inf"), "got inf"),
    "one of many": (torch.cat([torch.ones(25), -torch.ones(1)]), r"got -1 \(1 of 26 entries are invalid\)"),
    "shape": (
        torch.ones(5),
        r"expected a scalar, 2 entries \(one per layer: \['0', '2'\]\) or 26 entries.*got shape \(5,\)",
    ),
    "matrix": (torch.ones(26, 26), r"got shape \(26, 26\)"),
    "keys": ({"0": 1.0, "1": 1.0}, r"one entry for each of the layers \['0', '2'\]; got \['0', '1'\]. The layers are"),
    "missing": ({"0": 1.0}, r"got \['0'\]"),
    "negative layer": ({"0": 1.0, "2": -3.0}, r"got -3 \(1 of 2"),
    "complex": (torch.ones(2, dtype=torch.complex64), "got a tensor of torch.complex64"),
    "bool": (torch.ones(2, dtype=torch.bool), "got a tensor of torch.bool"),
    "meta": (torch.ones(26, device="meta"), "prior_precision: expected a dense tensor with data; got a meta tensor"),
    "sparse": (torch.ones(26).to_sparse(), "got a sparse tensor. Use tensor.to_dense"),
}


@pytest.mark.parametrize("kind", PRIORS)
def test_bad_priors(kind: str) -> None:
    value, match = PRIORS[kind]
    module = mlp()
    with untouched(module), pytest.raises(InputError, match=match):
        convert(module, regression(), NOISE, value)


@pytest.mark.parametrize(
    ("sigma", "kind"), [(torch.ones(2, device="meta"), "meta"), (torch.ones(2).to_sparse(), "sparse")]
)
def test_a_sigma_without_values(sigma: torch.Tensor, kind: str) -> None:
    with pytest.raises(InputError, match=f"sigma: expected a dense tensor with data; got a {kind} tensor"):
        GaussianLikelihood(sigma)


@quiet
def test_a_prior_that_underflows() -> None:
    with pytest.raises(InputError, match=r"finite in torch.float32; got 0"):
        convert(mlp(dtype=torch.float32), regression(dtype=torch.float32), NOISE, 1e-60)


@quiet
@pytest.mark.parametrize(
    "value", [2, 2.0, torch.tensor(2.0), {"0": 2.0, "2": 2.0}, torch.full((2,), 2.0), torch.full((26,), 2)]
)
def test_good_priors_agree(value) -> None:
    x, y = regression()
    expected = convert(mlp(), (x, y), NOISE, 2.0).predict(x)
    torch.testing.assert_close(convert(mlp(), (x, y), NOISE, value).predict(x).variance, expected.variance)


@pytest.mark.parametrize(("decay", "count"), [(0.0, 5), (-1.0, 5), (float("nan"), 5), (0.1, 0)])
def test_bad_weight_decay(decay: float, count: int) -> None:
    with pytest.raises(InputError, match=r"(weight_decay|num_examples).*prior_precision"):
        precision_from_weight_decay(decay, count)


# Choices that do not go together --------------------------------------------------------------------------------------


def test_function_space_has_no_structure() -> None:
    module = mlp()
    with (
        untouched(module),
        pytest.raises(InputError, match=r"structure=Diagonal\(\).*WeightSpace"),
    ):
        convert(module, regression(), NOISE, DELTA, structure=Diagonal(), inference=FunctionSpace())


@quiet
@pytest.mark.parametrize("count", [0, -1])
def test_number_of_samples(count: int) -> None:
    module, (x, y) = mlp(), regression()
    gp = convert(module, (x, y), NOISE, DELTA)
    prediction = gp.predict(x)
    calls = [
        lambda: gp.sample_functions(count),
        lambda: prediction.sample(count),
        lambda: prediction.sample_latent(count),
        lambda: prediction.monte_carlo(count),
        lambda: sample_network(gp, x, num_samples=count),
    ]
    for call in calls:
        with untouched(module), pytest.raises(InputError, match=rf"num_samples.* at least 1; got {count}"):
            call()


@quiet
def test_noise_of_each_example_needs_a_likelihood_at_prediction() -> None:
    module, (x, y) = mlp(), regression()
    gp = convert(module, (x, y), GaussianLikelihood(torch.full((10, 1), 0.5)), DELTA)
    with (
        untouched(module),
        pytest.raises(InputError, match=r"given for each training example.*likelihood=GaussianLikelihood"),
    ):
        _ = gp.predict(x).variance  # even for as many inputs as there were examples
    assert gp.predict(x).epistemic.shape == (10, 2)  # which needs no noise
    with pytest.raises(InputError, match="given for each training example"):
        gp.predict(x).sample(1)
    prediction = gp.predict(x[:4], likelihood=GaussianLikelihood(torch.full((4, 1), 0.1)))
    torch.testing.assert_close(prediction.aleatoric, torch.full((4, 2), 0.01, dtype=torch.float64))


# Minima and matrices --------------------------------------------------------------------------------------------------


def linear(at_minimum: bool) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    x, y = regression(outputs=1)
    module = nn.Linear(3, 1, bias=False).double()
    solution = torch.linalg.solve(x.T @ x / 0.25 + DELTA * torch.eye(3).double(), x.T @ y / 0.25)
    module.weight.data = (solution if at_minimum else solution + 1).T.clone()
    return module, x, y


def test_not_a_minimum() -> None:
    module, x, y = linear(at_minimum=False)
    with (
        untouched(module),
        pytest.warns(NotAMinimumWarning, match="not at a minimum") as caught,
    ):
        convert(module, (x, y), NOISE, DELTA)
    assert len(caught) == 1


def test_a_minimum(recwarn) -> None:
    module, x, y = linear(at_minimum=True)
    with untouched(module):
        gp = convert(module, (x, y), NOISE, DELTA)
    assert not [w for w in recwarn if issubclass(w.category, NotAMinimumWarning)]
    torch.testing.assert_close(gp.predict(x).mean, module(x).detach())


@quiet
def test_non_convex_loss_names_the_example() -> None:
    module, (x, y) = mlp(), regression()
    y[:] = module(x).detach()
    y[3] += 5
    welsch = CustomLikelihood(lambda f, y: 1 - torch.exp(-0.5 * (y - f).square().sum()))
    with (
        untouched(module),
        pytest.raises(NotPositiveDefiniteError, match=r"eigenvalue -.* for example 3 .*1 of 10.*convex"),
    ):
        convert(module, (x, y), welsch, DELTA)


def test_indefinite_precision() -> None:
    matrix = torch.diag(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
    with pytest.raises(NotPositiveDefiniteError, match=r"\(3 × 3\) is not positive definite.*from -2 to 3\. .*δ"):
        DensePrecision(matrix).solve(torch.ones(3, 1, dtype=torch.float64))
    with pytest.raises(NotPositiveDefiniteError, match=r"A contains NaN or infinity. Do this"):
        cholesky(matrix * torch.nan, "A", "Do this.")
    with pytest.raises(NotPositiveDefiniteError, match=r"must be positive and finite; its smallest entry is -2"):
        DiagonalPrecision(matrix.diagonal())


@quiet
@pytest.mark.parametrize("inference", [WeightSpace(), FunctionSpace()], ids=repr)
def test_one_example_one_output_one_weight(inference) -> None:
    module = nn.Linear(1, 1, bias=False).double()
    x, y = regression(1, 1, 1)
    with untouched(module):
        prediction = convert(module, (x, y), NOISE, DELTA, inference=inference).predict(x)
    expected = x**2 / (DELTA + x**2 / 0.25)
    torch.testing.assert_close(prediction.epistemic, expected)


def test_sigma_and_delta_with_gradients_leave_none_in_the_results() -> None:
    module, (x, y) = mlp(), regression()
    sigma = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    delta = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    with untouched(module):
        gp = convert(module, (x, y), GaussianLikelihood(sigma), delta)
        prediction = gp.predict(x)
        for value in (prediction.mean, prediction.epistemic, prediction.aleatoric, gp.covariance(x), gp.kernel.full(x)):
            assert not value.requires_grad
