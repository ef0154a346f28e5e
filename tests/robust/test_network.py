"""Networks of every kind: the good give exact results and stay as they were, the bad get an error with advice."""

from __future__ import annotations

import copy
import random
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from dnn2gp import BernoulliLikelihood, CategoricalLikelihood, PoissonLikelihood, convert
from dnn2gp.network import Network
from dnn2gp.support.errors import InputError, NetworkError, TrainModeWarning

from reference import brute_force
from robust.support import DELTA, NOISE, assert_exact, mlp, regression, untouched

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning", "ignore::FutureWarning")


class Head(nn.Module):
    """A linear layer, and what `after` makes of its outputs."""

    def __init__(self, after=lambda outputs: outputs, outputs: int = 2) -> None:
        super().__init__()
        self.linear = nn.Linear(3, outputs).double()
        self.after = after

    def forward(self, x: Tensor) -> object:
        return self.after(self.linear(x))


def refused(module: nn.Module, match: str, error: type[Exception] = NetworkError, data=None) -> str:
    with untouched(module), pytest.raises(error, match=match) as caught:
        convert(module, data or regression(), NOISE, DELTA)
    return str(caught.value)


# Which weights count --------------------------------------------------------------------------------------------------


def test_frozen_weights_do_not_count() -> None:
    module = mlp()
    module[0].requires_grad_(False)
    gp = convert(module, regression(), NOISE, DELTA)
    assert gp.network.layout.names == ("2.weight", "2.bias")
    assert_exact(module, *regression())


def test_shared_weights_count_once() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    module[2].weight = module[0].weight
    gp = convert(module, regression(), NOISE, DELTA)
    assert gp.network.num_weights == 9 + 3 + 3 + 8
    assert_exact(module, *regression())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(1))


def test_embedding_tied_to_the_head() -> None:
    torch.manual_seed(0)
    module = Tied().double()
    tokens, y = torch.randint(0, 5, (8, 3)), regression(8, 3, 5)[1]
    assert convert(module, (tokens, y), NOISE, DELTA).network.num_weights == 25
    assert_exact(module, tokens, y)


def test_no_trainable_weight() -> None:
    refused(mlp().requires_grad_(False), r"no weight requires a gradient.*requires_grad_\(True\)")
    refused(nn.Tanh(), "no weight requires a gradient")


def test_integer_weights_do_not_count() -> None:
    module = mlp()
    module.register_parameter("steps", nn.Parameter(torch.ones(3, dtype=torch.long), requires_grad=False))
    assert_exact(module, *regression())


def test_nan_weights() -> None:
    module = mlp()
    module[2].weight.data[0, 0] = torch.nan
    refused(module, r"weight '2.weight' contains NaN.*smaller\s+learning rate")


def test_nan_in_a_frozen_weight() -> None:
    module = mlp()
    module[0].requires_grad_(False).weight.data[0, 0] = torch.nan
    refused(module, "finite outputs; got NaN or infinity.*frozen weights")


def test_mixed_dtypes() -> None:
    module = mlp()
    module[2].float()
    refused(module, r"one dtype.*float64 on cpu \('0.weight'\), torch.float32 on cpu \('2.weight'\).*network.float\(\)")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float16, torch.bfloat16])
def test_other_dtypes(dtype) -> None:
    x, y = regression()
    refused(mlp().to(dtype), rf"float32 or float64.*got {dtype}", data=(x.to(dtype), y.to(dtype)))


# What is no network ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "kind"), [(None, "NoneType"), (mlp, "function"), (nn.Linear, "the class Linear")])
def test_not_a_module(value, kind) -> None:
    with pytest.raises(NetworkError, match=rf"expected a torch.nn.Module; got {kind}\. Pass the trained module"):
        Network(value, torch.ones(2, 3))


def test_lazy_layer() -> None:
    refused(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)).double(), "'0.weight' of a lazy layer.*Call network")


def test_data_parallel() -> None:
    refused(nn.DataParallel(mlp()), r"expected a module on one device; got DataParallel.*Pass network.module")


def test_compiled() -> None:
    refused(torch.compile(mlp()), r"got one that torch.compile wraps.*Pass.*network\._orig_mod")


def test_meta_device() -> None:
    refused(mlp().to("meta"), "'0.weight' is on the meta device.*load_state_dict")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("inside", [False, True])
def test_torchscript(inside: bool) -> None:
    scripted = torch.jit.trace(mlp(), regression()[0])
    module = nn.Sequential(scripted) if inside else scripted
    with pytest.raises(NetworkError, match=r"TorchScript.*Pass the module that was scripted or traced"):
        convert(module, regression(), NOISE, DELTA)


# Modes and chance -----------------------------------------------------------------------------------------------------


def test_train_mode_is_warned_about_and_kept() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 2)]
    module, (x, y) = nn.Sequential(*layers).double(), regression()
    module(x)  # running statistics that are not the default
    module[3].eval()
    module[3].p = 0.9
    module[0].eval()
    with pytest.warns(TrainModeWarning, match=r"BatchNorm1d.*network.eval\(\)") as caught:
        assert_exact(module, x, y)
    assert module[1].training
    assert not module[3].training
    assert caught
    expected = convert(copy.deepcopy(module).eval(), (x, y), NOISE, DELTA).predict(x)
    with pytest.warns(TrainModeWarning):
        assert torch.equal(convert(module, (x, y), NOISE, DELTA).predict(x).mean, expected.mean)


def test_eval_mode_is_not_warned_about(recwarn) -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)).double().eval()
    convert(module, regression(), NOISE, DELTA)
    assert not [w for w in recwarn if issubclass(w.category, TrainModeWarning)]


NOISES = {
    "dropout": lambda outputs: F.dropout(outputs, 0.5, training=True),
    "torch": lambda outputs: outputs + torch.randn_like(outputs),
    "numpy": lambda outputs: outputs + np.random.rand(),
    "python": lambda outputs: outputs + random.random(),
}


@pytest.mark.parametrize("noise", NOISES)
def test_random_networks(noise: str) -> None:
    refused(Head(NOISES[noise]), "not deterministic in eval mode: two passes.*functional dropout.*switch them off")


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), np.random.rand])
def test_random_numbers_that_are_drawn_in_vain(draw) -> None:
    assert_exact(Head(lambda outputs: outputs + 0 * float(draw())), *regression())


def test_batch_norm_without_running_statistics() -> None:
    norm = nn.BatchNorm1d(4, track_running_stats=False)
    module = nn.Sequential(nn.Linear(3, 4), norm, nn.Linear(4, 2)).double().eval()
    refused(module, r"works on a batch of 4, but fails on a single example: .*track_running_stats=False")
    image = (
        nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2, track_running_stats=False), nn.Flatten()).double().eval()
    )
    x = torch.randn(6, 1, 3, 3, dtype=torch.float64)
    refused(
        image,
        r"depends on the rest of the batch: .*track_running_stats=False",
        data=(x, torch.randn(6, 8).double()),
    )


def test_forward_that_uses_the_batch() -> None:
    refused(
        Head(lambda outputs: outputs - outputs.mean(0)),
        r"depends on the rest of the batch: .*no Jacobian per example",
    )


# Layers that work in place --------------------------------------------------------------------------------------------


def test_in_place_first_layer() -> None:
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 4), nn.ELU(inplace=True), nn.Linear(4, 2)).double()
    x, y = regression()
    expected = convert(nn.Sequential(nn.ReLU(), *copy.deepcopy(module)[1:]), (x, y), NOISE, DELTA).predict(x.clone())
    before = x.clone()
    with untouched(module):
        found = convert(module, (x, y), NOISE, DELTA).predict(x)
    assert torch.equal(x, before)
    assert torch.equal(found.mean, expected.mean)
    assert torch.equal(found.variance, expected.variance)


def test_in_place_inside() -> None:
    def after(outputs: Tensor) -> Tensor:
        outputs = outputs * 1.0
        outputs[:, 0] *= 2
        outputs += 1
        return outputs.tanh_()

    assert_exact(Head(after), *regression())


class Counter(nn.Module):
    """Counts its calls in a buffer and in an attribute, and keeps a running mean of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2).double()
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))
        self.total = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        self.total += 1
        return self.linear(x)


def test_buffers_written_in_place() -> None:
    module = Counter()
    assert_exact(module, *regression())
    gp = convert(module, regression(), NOISE, DELTA)
    assert gp.network.state()["calls"] == 0
    assert module.total == 0


# What forward returns -------------------------------------------------------------------------------------------------


@dataclass
class Output:
    logits: Tensor


@pytest.mark.parametrize(
    ("after", "kind"),
    [(lambda o: (o, o), "tuple"), (lambda o: {"logits": o}, "dict"), (Output, "Output"), (lambda o: None, "NoneType")],
)
def test_other_outputs_than_a_tensor(after, kind) -> None:
    refused(Head(after), f"return one tensor; got {kind}. Wrap the network in a module")


@pytest.mark.parametrize(
    ("after", "kind"), [(Tensor.to_sparse, "sparse"), (lambda o: torch.nested.as_nested_tensor(list(o)), "nested")]
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_outputs_that_are_not_dense(after, kind) -> None:
    refused(Head(after), f"return a dense tensor; got a {kind} one")


@pytest.mark.parametrize(
    ("after", "shape"),
    [
        (lambda o: o.T, r"\(2, 4\)"),
        (lambda o: o.sum(), r"\(\)"),
        (lambda o: o[:, :0], r"\(4, 0\)"),
        (lambda o: o.mean(0), r"\(2,\)"),
    ],
)
def test_outputs_of_wrong_shape(after, shape) -> None:
    refused(Head(after), f"4 in all, .*{shape}.*squeeze")


def test_squeeze_in_forward() -> None:
    x, y = regression(outputs=1)
    refused(Head(Tensor.squeeze, 1), r"1 in all, .*got shape \(\). Look for squeeze", data=(x, y))


def test_outputs_whose_shape_depends_on_the_batch() -> None:
    refused(Head(lambda o: o.repeat(1, len(o))), r"shape \(2,\) .*but \(8,\) in a batch of 4")


@pytest.mark.parametrize(
    "after", [Tensor.detach, lambda o: torch.ones_like(o), lambda o: o.round(decimals=1).argsort(1).double()]
)
def test_detached_outputs(after) -> None:
    refused(Head(after), r"do not depend on its trainable weights.*Look for \(a\) detach\(\)")


def test_outputs_of_another_dtype() -> None:
    refused(
        Head(Tensor.float),
        "outputs in the dtype of the weights, torch.float64; got torch.float32.*outside of torch.autocast",
    )


def test_autocast() -> None:
    x, y = regression(dtype=torch.float32)
    with torch.autocast("cpu"):
        refused(mlp(dtype=torch.float32), "got torch.bfloat16.*outside of torch.autocast", data=(x, y))


def test_outputs_that_overflow() -> None:
    refused(Head(lambda o: o / 0), "finite outputs; got NaN or infinity")


@pytest.mark.parametrize("shape", [(), (1,), (6,), (2, 3), (1, 2, 3)])
def test_the_shape_of_the_outputs_is_remembered(shape: tuple[int, ...]) -> None:
    count = torch.Size(shape).numel()
    torch.manual_seed(0)
    module = Head(lambda o: o.reshape(len(o), *shape), count)
    x, y = regression(outputs=count)
    y = y.reshape(len(y), *shape)
    assert_exact(module, x, y)
    gp = convert(module, (x, y), NOISE, DELTA)
    prediction = gp.predict(x[:7])
    for values in (prediction.mean, prediction.variance, gp.mean(x[:7]), prediction.monte_carlo(2)):
        assert values.shape == (7, *shape)
    assert gp.sample_functions(3)(x[:7]).shape == (3, 7, *shape)


# What forward leaves behind -------------------------------------------------------------------------------------------


class Cache(nn.Module):
    """Keeps its activations in every way that one finds in the wild."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()
        self.last: Tensor | None = None
        self.history: list[Tensor] = []
        self.cache: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.first(x).tanh()
        self.history.append(self.last)
        self.cache["hidden"] = self.last
        self.new = self.last.detach()
        if "mask" not in self._buffers:
            self.register_buffer("mask", torch.ones_like(self.last[:1]))
        return self.second(self.last)


def test_cached_activations() -> None:
    torch.manual_seed(0)
    module, (x, y) = Cache(), regression()
    with untouched(module):
        prediction = convert(module, (x, y), NOISE, DELTA).predict(x)
    assert module.last is None
    assert module.history == []
    assert module.cache == {}
    module(x).sum().backward()
    kept = module.last
    with untouched(module):
        convert(module, (x, y), NOISE, DELTA).predict(x)
    assert module.last is kept
    (module(x).sum() + module.last.sum()).backward()
    plain = nn.Sequential(module.first, nn.Tanh(), module.second)
    torch.testing.assert_close(prediction.variance, convert(plain, (x, y), NOISE, DELTA).predict(x).variance)


def test_forward_hooks_stay_and_work() -> None:
    module, (x, y) = mlp(), regression()
    seen: list[tuple[int, ...]] = []
    module[0].register_forward_hook(lambda _, __, outputs: seen.append(tuple(outputs.shape)))
    module[2].register_forward_hook(lambda _, __, outputs: 2 * outputs)
    module[2].register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1,))
    assert_exact(module, x, y)
    seen.clear()
    module(x)
    assert seen == [(10, 4)]


def test_backward_hooks_stay_and_work() -> None:
    module, (x, y) = mlp(), regression()
    seen: list[int] = []
    module[0].register_full_backward_hook(lambda *_: seen.append(1))
    module[0].weight.register_hook(lambda _: seen.append(2))
    prediction = convert(module, (x, y), NOISE, DELTA).predict(x)
    with untouched(module):
        convert(module, (x, y), NOISE, DELTA).predict(x)
    torch.testing.assert_close(prediction.variance, convert(mlp(), (x, y), NOISE, DELTA).predict(x).variance)
    seen.clear()
    module(x.requires_grad_(True)).sum().backward()
    assert sorted(seen) == [1, 2]


NORMS = [
    nn.utils.weight_norm,
    nn.utils.spectral_norm,
    parametrizations.weight_norm,
    parametrizations.spectral_norm,
    parametrizations.orthogonal,
]


@pytest.mark.parametrize("norm", NORMS)
def test_reparametrised_layers(norm) -> None:
    torch.manual_seed(0)
    module, (x, y) = nn.Sequential(norm(nn.Linear(3, 3).double()), nn.Tanh(), nn.Linear(3, 2).double()), regression()
    module(x).sum().backward()
    module.eval()
    expected = module(x).detach()
    with untouched(module):
        gp = convert(module, (x, y), NOISE, DELTA)
        found = gp.predict(x)
    torch.testing.assert_close(found.outputs, expected)
    names = [n for n, p in module.named_parameters() if p.requires_grad]
    rows = [torch.autograd.grad(module(x)[0, k], [p for p in module.parameters()]) for k in range(2)]
    by_name = [dict(zip(names, row, strict=True)) for row in rows]
    jacobian = torch.stack([gp.network.layout.flatten(row) for row in by_name])
    torch.testing.assert_close(gp.features.jacobian(x[:1])[0], jacobian)
    module.train()(x).sum().backward()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 2, batch_first=True), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def test_recurrent_network_trains_on() -> None:
    torch.manual_seed(0)
    module = Recurrent().double()
    x, y = torch.randn(5, 4, 3, dtype=torch.float64), regression(5)[1]
    assert_exact(module, x, y)
    module(x).sum().backward()
    assert all(p.grad is not None for p in module.parameters())
    copy.deepcopy(module)


def test_attention_trains_on() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    module = nn.Sequential(nn.Linear(3, 4), layer, nn.Flatten(), nn.Linear(8, 2)).double().eval()
    x, y = torch.randn(5, 2, 3, dtype=torch.float64), regression(5)[1]
    assert_exact(module, x, y)
    module(x).sum().backward()


# Inputs of every form -------------------------------------------------------------------------------------------------


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(3, 2).double(), nn.Linear(2, 2).double()

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.left(a) * self.right(b)


class OneDict(Two):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(batch["a"], batch["b"])


class OneTuple(Two):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return super().forward(*pair)


PAIR = namedtuple("PAIR", ["a", "b"])
FORMS = {
    "tuple": (Two, tuple),
    "list": (Two, list),
    "dict": (Two, lambda pair: dict(zip("ab", pair, strict=True))),
    "named tuple": (Two, lambda pair: PAIR(*pair)),
    "one dict": (OneDict, lambda pair: dict(zip("ab", pair, strict=True))),
    "one tuple": (OneTuple, tuple),
    "one list": (OneTuple, list),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_several_inputs(form: str) -> None:
    kind, pack = FORMS[form]
    pair, y = regression(10, 3, 2), regression(10, 3, 2)[1].flip(0)
    inputs, module = pack(pair), kind()
    expected = convert(Two(), (tuple(pair), y), NOISE, DELTA).predict(tuple(pair))
    with untouched(module):
        gp = convert(module, (inputs, y), NOISE, DELTA)
        found = gp.predict(inputs)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)
    assert_exact(Two(), tuple(pair), y)


def test_inputs_repacked_at_prediction() -> None:
    (a, b), y = regression(10, 3, 2), regression(10, 3, 2)[1].flip(0)
    gp = convert(Two(), ([a, b], y), NOISE, DELTA)
    assert torch.equal(gp.predict((a, b)).mean, gp.predict([a, b]).mean)
    gp = convert(OneDict(), ({"a": a, "b": b}, y), NOISE, DELTA)
    assert torch.equal(gp.predict({"b": b, "a": a}).mean, gp.predict({"a": a, "b": b}).mean)


@pytest.mark.parametrize(
    "wrong", [lambda a, b: a, lambda a, b: (a,), lambda a, b: {"a": a, "b": b}, lambda a, b: (a, b, b)]
)
def test_another_container_at_prediction(wrong) -> None:
    (a, b), y = regression(10, 3, 2), regression(10, 3, 2)[1].flip(0)
    module = Two()
    gp = convert(module, ((a, b), y), NOISE, DELTA)
    with (
        untouched(module),
        pytest.raises(InputError, match=r"expected the container.*a tuple of \[float64.*got .*Pack them"),
    ):
        gp.predict(wrong(a, b))


def test_integer_inputs() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(6, 2)).double()
    tokens, y = torch.randint(0, 7, (8, 2)), regression(8)[1]
    assert_exact(module, tokens, y)
    gp = convert(module, (tokens, y), NOISE, DELTA)
    assert torch.equal(gp.predict(tokens.int()).mean, gp.predict(tokens).mean)
    with (
        untouched(module),
        pytest.raises(InputError, match=r"forward fails on int64 of shape \(4, 2\): index out of range"),
    ):
        convert(module, (tokens + 7, y), NOISE, DELTA)


def test_inputs_of_another_dtype() -> None:
    x, y = regression()
    refused(
        mlp(),
        r"dtype of the weights, torch.float64; got torch.float32.*inputs.to\(torch.float64\)",
        InputError,
        (x.float(), y),
    )
    refused(mlp(), r"forward fails on int64 of shape \(4, 3\).*network\(inputs\) runs", InputError, (x.long(), y))


def test_inputs_of_wrong_shape() -> None:
    x, y = regression(inputs=5)
    refused(mlp(), r"forward fails on float64 of shape \(4, 5\): mat1 and mat2", InputError, (x, y))


BAD_INPUTS = {
    "width": (
        lambda x: x[:, :2],
        r"forward fails on float64 of shape \(1, 2\).*inputs like float64 of shape \(1, 3\)",
    ),
    "rank": (
        lambda x: x[:, None],
        r"expected outputs of shape \(1, 2\).*shape \(1, 1, 3\) gives outputs of shape \(1, 1, 2\)",
    ),
    "one example": (lambda x: x[0], r"forward fails on float64 of shape \(1,\)"),
    "0-d": (lambda x: x[0, 0], r"got a 0-d tensor.*unsqueeze\(0\)"),
    "dtype": (lambda x: x.float(), "dtype of the weights, torch.float64; got torch.float32"),
    "integers": (lambda x: x.long(), "forward fails on int64"),
    "empty": (lambda x: x[:0], "expected at least one example; got none"),
    "NaN": (
        lambda x: torch.where(torch.arange(len(x))[:, None] == 3, torch.nan, x),
        "NaN or infinity in example 3.*Remove or impute",
    ),
    "infinity": (
        lambda x: torch.where(torch.arange(len(x))[:, None] == 5, torch.inf, x),
        "NaN or infinity in example 5",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["predict", "mean", "covariance", "samples"])
@pytest.mark.parametrize("kind", BAD_INPUTS)
def test_bad_inputs_of_a_gp(kind: str, method: str) -> None:
    change, match = BAD_INPUTS[kind]
    module, (x, y) = mlp(), regression()
    gp = convert(module, (x, y), NOISE, DELTA)
    call = gp.sample_functions(2) if method == "samples" else getattr(gp, method)
    with untouched(module), pytest.raises(InputError, match=match):
        call(change(x))


def test_longer_sequences_than_in_training() -> None:
    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).mean(1)

    x = torch.randn(5, 4, 3, dtype=torch.float64)
    gp = convert(Pool(), (x, regression(5)[1]), NOISE, DELTA)
    longer = torch.randn(6, 9, 3, dtype=torch.float64)
    assert gp.predict(longer).mean.shape == (6, 2)


def test_one_example_and_one_output() -> None:
    x, y = regression(1, 3, 1)
    assert_exact(mlp(outputs=1), x, y)


@pytest.mark.parametrize(
    ("targets", "match"),
    [
        (torch.tensor([0, 1, 2, 1]), r"expected labels 0..1 \(the network has 2 outputs\); got 2 in row 2"),
        (torch.tensor([0, -1, 0, 1]), "got -1 in row 1"),
        (torch.tensor([0.0, 1.0, 0.0, 1.0]), r"expected integer labels of shape \(N,\).*torch.float32"),
    ],
)
def test_bad_labels(targets: Tensor, match: str) -> None:
    module, (x, _) = mlp(), regression(4)
    with untouched(module), pytest.raises(InputError, match=match):
        convert(module, (x, targets), CategoricalLikelihood(), DELTA)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_targets(dtype: torch.dtype) -> None:
    x, y = regression(4)
    given, labels = (y > 0).to(dtype), torch.tensor([0, 1, 0, 1])
    for likelihood, expected, same in [
        (CategoricalLikelihood(), labels, labels.to(dtype)),
        (BernoulliLikelihood(), given.long(), given),
        (PoissonLikelihood(), given.long(), given),
    ]:
        gp = convert(mlp(), (x, same), likelihood, DELTA)
        assert gp.evidence() == convert(mlp(), (x, expected), likelihood, DELTA).evidence()
        assert torch.equal(gp.predict(x).log_prob(same), gp.predict(x).log_prob(expected))


def test_unsigned_labels_out_of_range() -> None:
    with pytest.raises(InputError, match=r"expected labels 0..1"):
        convert(mlp(), (regression(2)[0], torch.tensor([0, 2**64 - 1], dtype=torch.uint64)), CategoricalLikelihood(), 1)


def test_targets_without_values_for_log_prob() -> None:
    x, y = regression()
    prediction = convert(mlp(), (x, y), NOISE, DELTA).predict(x)
    with pytest.raises(InputError, match="targets: expected a dense tensor with data; got a sparse tensor"):
        prediction.log_prob(y.to_sparse())


def test_calls_inside_of_torch_func() -> None:
    module, (x, y) = mlp(), regression()
    gp = convert(module, (x, y), NOISE, DELTA)
    calls = [
        lambda z: gp.predict(z).mean.sum(),
        lambda z: gp.covariance(z).sum(),
        lambda z: convert(module, (x, y), NOISE, DELTA).predict(z).mean.sum(),
    ]
    for call in calls:
        with untouched(module), pytest.raises(InputError, match=r"outside of torch\.func.*torch\.autograd"):
            torch.func.grad(call)(x)
        with untouched(module), pytest.raises(InputError, match=r"outside of torch\.func"):
            torch.vmap(call)(x[:, None])


def test_brute_force_sees_frozen_weights_as_the_library_does() -> None:
    module = mlp()
    module[0].weight.requires_grad_(False)
    gp = convert(module, regression(), NOISE, DELTA)
    torch.testing.assert_close(gp.features.jacobian(regression()[0]), brute_force.jacobian(module, regression()[0]))


def test_a_network_that_no_weight_moves_is_refused() -> None:
    class Rounding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(x).round()

    refused(Rounding().double(), "no trainable weight .* the outputs")
