"""The layerwise engine and networks that do unusual things: hooks, in-place changes, errors, modes, branches."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from features.support import assert_right, close, constant, engine, explicit, kernel, randn
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

from dnn2gp.features import LayerwiseFeatures
from dnn2gp.network import Network
from dnn2gp.support.errors import NetworkError
from dnn2gp.weights.structures import DiagonalPrecision

from robust.support import untouched


class Calls(nn.Module):
    """Two layers, and a forward pass that a test writes."""

    def __init__(self, run, first: nn.Module | None = None, last: nn.Module | None = None) -> None:
        super().__init__()
        self.run = run
        self.first, self.last = first or nn.Linear(3, 3), last or nn.Linear(3, 2)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def x() -> Tensor:
    return randn(4, 3)


def residual(net: Calls, x: Tensor) -> Tensor:
    hidden = torch.tanh(net.first(x))
    out = hidden * 2
    out += net.first(hidden)
    return net.last(out)


def overwritten(net: Calls, x: Tensor) -> Tensor:
    hidden = net.first(x)
    hidden[:, 0] = x[:, 0]
    hidden[:, 1:].mul_(2)
    return net.last(torch.tanh(hidden))


def input_changed_after(net: Calls, x: Tensor) -> Tensor:
    hidden = torch.tanh(net.first(x.clone()))
    x.mul_(0)
    return net.last(hidden) + x[:, :2]


def input_changed_before(net: Calls, x: Tensor) -> Tensor:
    x.mul_(2).add_(1)
    return net.last(torch.tanh(net.first(x)))


def tuples(net: Calls, x: Tensor) -> Tensor:
    return net.last(torch.tanh(net.first(x)[0]))


class Tuple(nn.Linear):
    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor], None]:
        return super().forward(x), {"x": x}, None


def dicts(net: Calls, x: Tensor) -> Tensor:
    return net.last(net.first(x)["out"].cos())


class Dict(nn.Linear):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": super().forward(x), "x": x}


def checkpointed(net: Calls, x: Tensor) -> Tensor:
    return net.last(torch.tanh(checkpoint(net.first, x, use_reentrant=False)))


def list_output(net: Calls, x: Tensor) -> Tensor:
    return net.last(torch.cat([part.tanh() for part in net.first(x).chunk(3, -1)], -1))


IN_PLACE = {
    "in-place ReLU": (lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(inplace=True), nn.Linear(6, 2)), (3,)),
    "in-place ReLU, tokens": (
        lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(inplace=True), nn.Linear(6, 2), nn.Flatten()),
        (2, 3),
    ),
    "in-place ReLU, tokens, no bias": (
        lambda: nn.Sequential(nn.Linear(3, 6, bias=False), nn.ReLU(inplace=True), nn.Linear(6, 2), nn.Flatten()),
        (2, 3),
    ),
    "in-place ReLU after a convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 2)),
        (1, 3, 3),
    ),
    "in-place ReLU after batch norm": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ELU(inplace=True), nn.Linear(4, 2)),
        (3,),
    ),
    "residual": (lambda: Calls(residual), (3,)),
    "overwritten output": (lambda: Calls(overwritten), (3,)),
    "input changed after a copy of it was used": (lambda: Calls(input_changed_after), (3,)),
    "input changed before": (lambda: Calls(input_changed_before), (3,)),
    "tuples inside": (lambda: Calls(tuples, Tuple(3, 3)), (3,)),
    "dicts inside": (lambda: Calls(dicts, Dict(3, 3)), (3,)),
    "a list inside": (lambda: Calls(list_output), (3,)),
    "checkpoint": (lambda: Calls(checkpointed), (3,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_PLACE)
def test_inside_a_network(name):
    """By rules alone, and the inputs and the network are as before."""
    build, shape = IN_PLACE[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = build().double().eval()
    inputs = randn(5, *shape)
    before = inputs.clone()
    with untouched(module):
        assert_right(module, inputs)
    assert torch.equal(inputs, before)


def test_an_input_changed_after_its_use_is_refused():
    """Autograd itself cannot have the gradient of such a layer; the error says what is wrong."""

    def run(net: Calls, x: Tensor) -> Tensor:
        hidden = net.first(x)
        x.mul_(0)
        return net.last(hidden)

    with pytest.raises(NetworkError, match=r"changes a tensor in place after a layer has used it.*inplace operation"):
        engine(Calls(run), x())


def test_hooks_are_respected():
    """Those that change inputs and outputs, at all levels, run as ever and stay."""
    module = mlp()
    module[0].register_forward_pre_hook(lambda layer, args: (args[0] * 2,))
    module[0].register_forward_hook(lambda layer, args, out: out + args[0].sum(1, keepdim=True))
    module[2].register_forward_hook(lambda layer, args, out: out**2)
    module.register_forward_hook(lambda layer, args, out: out.sin())
    with untouched(module):
        assert_right(module, x())
    assert [len(module[i]._forward_hooks) for i in range(3)] == [1, 0, 1]


@pytest.mark.parametrize("kind", ["hook", "pre-hook"])
def test_full_backward_hooks_stay(kind):
    """They run in autograd, and change nothing here."""
    module = mlp()
    if kind == "hook":
        module[0].register_full_backward_hook(lambda *_: None)
    else:
        module[2].register_full_backward_pre_hook(lambda *_: None)
    expected = explicit(mlp_like(module), x())
    with untouched(module):
        features = engine(module, x())
        close(features.jacobian(x()), expected)


def mlp_like(module: nn.Module) -> nn.Module:
    """The same weights without hooks."""
    plain = mlp()
    plain.load_state_dict(module.state_dict())
    return plain


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_in_mid_forward_leaves_nothing_behind(error):
    """No function mode and no hook; the next call works."""
    fails = [False]

    def run(net: Calls, x: Tensor) -> Tensor:
        hidden = net.first(x)
        if fails[0]:
            raise error("in mid-forward")
        return net.last(torch.tanh(hidden))

    module = Calls(run)
    features = engine(module, x())
    fails[0] = True
    with untouched(module), pytest.raises(error, match="in mid-forward"):
        features.jacobian(x())
    assert _get_current_function_mode_stack() == []
    fails[0] = False
    close(features.jacobian(x()), explicit(module, x()))


def test_an_error_inside_attention_leaves_nothing_behind():
    """Where the mode is entered twice."""
    broken = [False]

    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.zeros(7, 7) if broken[0] else None
            return self.layer(x, x, x, attn_mask=mask)[0].mean(1)

    module, inputs = Attend().double(), randn(3, 2, 4)
    features = engine(module, inputs)
    broken[0] = True
    with untouched(module), pytest.raises(RuntimeError):
        features.jacobian(inputs)
    assert _get_current_function_mode_stack() == []


def test_state_of_the_module_is_untouched():
    """Train mode, gradients, frozen weights and versions are as before."""
    module = mlp().train()
    module[0].weight.requires_grad_(False)
    versions = [p._version for p in module.parameters()]
    with untouched(module):
        features = engine(module, x())
        features.kernel_full(x(), constant(features))
        features.ggn_diagonal(x(), torch.ones(4, 2, 1, dtype=torch.float64))
        features.jvp(x(), randn(features.num_weights, 9))
    assert module.training
    assert all(p.grad is None for p in module.parameters())
    assert [p._version for p in module.parameters()] == versions


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_callers_mode_does_not_matter(mode):
    module, inputs = mlp(), x()
    J = explicit(module, inputs)
    with mode():
        inputs = inputs.clone()
        features = engine(module, inputs)
        assert features.rest is None
        found = features.jacobian(inputs), features.kernel_full(inputs, constant(features))
        pulled = features.vjp(inputs, randn(4, 2, 9))
    assert not any(tensor.requires_grad for tensor in (*found, pulled))
    close(found[0].clone(), J)
    close(found[1].clone(), kernel(J, constant(features)))
    close(pulled.clone(), torch.einsum("nkp,nks->ps", J, randn(4, 2, 9)))


def test_inputs_that_require_a_gradient():
    """They get none."""
    module, inputs = mlp(), x().requires_grad_()
    features = engine(module, inputs)
    close(features.jacobian(inputs), explicit(module, inputs.detach()))
    assert inputs.grad is None


def refuses_or_is_right(module: nn.Module, first: Tensor, then: Tensor) -> None:
    """Learned from some examples and used for others: right, or an error that names the general engine."""
    J, refused = explicit(module, then), None
    try:
        features = engine(module, first)
        found = features.jacobian(then)
        trace = features.kernel_trace(then, DiagonalPrecision(torch.ones(J.shape[2], dtype=J.dtype)))
    except NetworkError as error:
        refused = str(error)
    if refused is None:
        close(found, J)
        close(trace, torch.einsum("nkp,mkp->nm", J, J))
    else:
        assert "JacobianFeatures" in refused


def test_a_branch_on_values_names_the_general_engine():
    def run(net: Calls, x: Tensor) -> Tensor:
        return net.last(net.first(x).tanh() if x[0, 0] > 0 else x)

    inputs = x()
    inputs[:, 0] = 1
    module = Calls(run)
    features = engine(module, inputs)
    inputs[:, 0] = -1
    with pytest.raises(NetworkError, match="JacobianFeatures"):
        features.jacobian(inputs)


def masked(net: Calls, x: Tensor) -> Tensor:
    """The layer meets only the tokens that are there."""
    there = x[..., 0] > 0
    out = x.new_zeros(*x.shape)
    out[there] = torch.tanh(net.first(x[there]))
    return net.last(out.sum(1))


def masked_inputs(*counts: int) -> Tensor:
    inputs = randn(len(counts), 4, 3)
    for row, count in zip(inputs, counts, strict=True):
        row[:, 0] = -row[:, 0].abs()
        row[:count, 0].abs_()
    return inputs


@pytest.mark.filterwarnings("ignore:No layer rule")
@pytest.mark.parametrize("counts", [(2, 2, 2, 2), (1, 3, 2, 2), (1, 1, 3, 3), (4, 4, 4, 4), (1, 2, 1, 1), (0, 4, 2, 2)])
def test_tokens_chosen_by_their_values(counts):
    """How many positions an example has depends on the data; the first ones have two each."""
    refuses_or_is_right(Calls(masked), masked_inputs(2, 2, 2), masked_inputs(*counts))


@pytest.mark.filterwarnings("ignore:No layer rule")
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_examples_sorted_inside(order):
    """The first ones are sorted already."""

    def run(net: Calls, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return net.last(torch.tanh(net.first(x[order]))[order.argsort()])

    inputs = x()
    inputs[:, 0] = torch.arange(4.0)
    refuses_or_is_right(Calls(run), inputs[:3], inputs[list(order)])


@pytest.mark.filterwarnings("ignore:No layer rule")
@pytest.mark.parametrize("experts", [(0, 0, 0, 0), (0, 1, 0, 1), (1, 1, 1, 1), (0, 0, 1, 1, 0, 0), (0, 1)])
def test_experts_chosen_by_values(experts):
    """Two layers, each of which meets the examples that are sent to it; the first ones all go to one."""

    def run(net: Calls, x: Tensor) -> Tensor:
        out = x.new_zeros(len(x), 3)
        for index, expert in enumerate((net.first, net.last)):
            here = (x[:, 0] == index).nonzero()[:, 0]
            out = out.index_add(0, here, torch.tanh(expert(x[here])))
        return out

    inputs = randn(len(experts), 3)
    inputs[:, 0] = torch.tensor(experts)
    first = x()
    first[:, 0] = 0
    refuses_or_is_right(Calls(run, last=nn.Linear(3, 3)), first, inputs)


def test_a_sparse_buffer():
    """A graph network with a sparse matrix of neighbours."""

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("neighbours", (randn(3, 3) > 0).double().to_sparse())
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.tanh(self.layer(x)).transpose(0, 1)
            mixed = torch.sparse.mm(self.neighbours, hidden.flatten(1)).view_as(hidden)
            return mixed.transpose(0, 1).cos().mean(1)

    module, inputs = Graph().double(), randn(4, 3, 2)
    features = engine(module, inputs)
    close(features.jacobian(inputs), explicit(module, inputs))


@pytest.mark.filterwarnings("ignore:No layer rule")
def test_vmap_inside():
    """A network that maps over its examples itself."""

    def run(net: Calls, x: Tensor) -> Tensor:
        return torch.vmap(lambda row: net.last(torch.tanh(net.first(row))))(x)

    module = Calls(run)
    features = engine(module, x())
    close(features.jacobian(x()), explicit(module, x()))


def test_in_place_after_the_input_was_kept_by_name():
    """Arguments given by name are kept like the others."""

    def run(net: Calls, x: Tensor) -> Tensor:
        hidden = F.linear(input=x, weight=net.first.weight, bias=net.first.bias)
        return net.last(torch.tanh(hidden))

    assert_right(Calls(run), x())


def test_another_anchor():
    """Features at other weights than the network's."""
    module = mlp()
    network = Network(module, x())
    anchor = randn(network.num_weights)
    features = LayerwiseFeatures(network, x(), anchor)
    other = mlp()
    torch.nn.utils.vector_to_parameters(anchor, other.parameters())
    close(features.jacobian(x()), explicit(other, x()))


def test_weights_changed_later_do_not_reach_the_features():
    module = mlp()
    J = explicit(module, x())
    features = engine(module, x())
    with torch.no_grad():
        module[0].weight.zero_()
    close(features.jacobian(x()), J)


class Ties(nn.Module):
    """Max pooling of a ReLU: equal entries, negative windows, padding, overlap; changes in place before the pooling."""

    def __init__(self, pool: nn.Module, both: bool, change: bool = False) -> None:
        super().__init__()
        self.conv, self.pool, self.both, self.change = nn.Conv2d(1, 2, 1), pool, both, change
        self.out = nn.LazyLinear(2)

    def forward(self, x):
        before = self.conv(x) + 0
        hidden = torch.relu(before)
        if self.change:
            before.mul_(-1)
        pooled = self.pool(hidden).flatten(1)
        return self.out(torch.cat([pooled, hidden.flatten(1)], 1) if self.both else pooled)


@pytest.mark.parametrize(("both", "change"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 1, 1), nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(2)], ids=str
)
def test_pooling_after_relu(pool, both, change):
    x = torch.randn(4, 1, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).round()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Ties(pool, both, change).double()
        module(x)
    features = engine(module, x)
    assert features.rest is None
    close(features.outputs(x), module(x).detach())
    close(features.jacobian(x), explicit(module, x))


def test_outputs_and_factors_from_one_forward_pass(monkeypatch):
    module, calls = mlp(), []
    features = engine(module, x())
    features.jacobian(x())  # everything is known
    forward = Network.__call__
    monkeypatch.setattr(Network, "__call__", lambda *args: calls.append(args) or forward(*args))
    outputs, factors = features.outputs_and_factors(x())
    assert len(calls) == 1
    close(outputs, module(x()).detach())
    close(factors.rows(), explicit(module, x()))
    assert not outputs.requires_grad
