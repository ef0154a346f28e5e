"""Weights without a rule: they alone are left to the general engine, with one warning, and the results are right."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from features.support import assert_right, close, constant, engine, explicit, falls_back, left, randn
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence

from dnn2gp.features import FactoredJacobian
from dnn2gp.support.errors import NetworkError


class Net(nn.Module):
    """A ruled layer, something in the middle, and a ruled layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.w, self.last = nn.Linear(3, 4), nn.Parameter(torch.randn(4, 4)), nn.Linear(4, 2)

    def middle(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


class Einsum(Net):
    def middle(self, x: Tensor) -> Tensor:
        return torch.einsum("ni,io->no", x, self.w)


class LeftProduct(Net):
    def middle(self, x: Tensor) -> Tensor:
        return (self.w @ x.T).T


class Divided(Net):
    def middle(self, x: Tensor) -> Tensor:
        return x / (1 + self.w[0].exp())


class Columns(Net):
    """A slice that is not one piece of memory."""

    def middle(self, x: Tensor) -> Tensor:
        return F.linear(x[:, :2], self.w[:, :2])


class StridedBias(Net):
    def middle(self, x: Tensor) -> Tensor:
        return F.linear(x, self.last.weight.detach().repeat(2, 1), self.w[:, 0])


class Cube(torch.autograd.Function):
    """(x w)³ entry by entry, with a gradient of its own, unseen by function modes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return (x * w) ** 3

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        common = 3 * (x * w) ** 2 * grad
        return common * w, (common * x).sum(0)


class Custom(Net):
    def middle(self, x: Tensor) -> Tensor:
        return Cube.apply(x, self.w[0])


class CustomWhole(nn.Module):
    """A custom function that takes a whole weight, as a module hands it over."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.w = nn.Linear(3, 4), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return Cube.apply(self.first(x), self.w)


class Both(Net):
    """A ruled use and one that is not."""

    def middle(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.w) + torch.einsum("ni,oi->no", x, self.w)


class RuledAndCustom(Net):
    """A ruled use, and one that no mode sees."""

    def middle(self, x: Tensor) -> Tensor:
        return Cube.apply(x, self.w[0]) + x @ self.w


class NoGrad(Net):
    """One use counts for the derivative, the other does not."""

    def middle(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = F.linear(x, self.w)
        return F.linear(x, self.w) * fixed


class OnlyWithoutGradient(Net):
    """A weight that counts for the outputs but not for their derivative."""

    def middle(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = F.linear(x, self.w)
        return x * fixed


class Detached(Net):
    def middle(self, x: Tensor) -> Tensor:
        return F.linear(x, self.w) + F.linear(x, self.w.detach()).cos()


class Data(Net):
    def middle(self, x: Tensor) -> Tensor:
        return F.linear(x, self.w) + x @ self.w.data


class Hyper(Net):
    """Weights made from weights."""

    def middle(self, x: Tensor) -> Tensor:
        return F.linear(x, torch.tanh(self.w))


class Generated(nn.Module):
    """A network of weights that makes the weights of another."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.make, self.last = nn.Parameter(torch.randn(2)), nn.Linear(2, 12), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(F.linear(x, self.make(self.code).view(4, 3))))


class Tokens(nn.Module):
    """Learned tokens that go through a layer, which the data go through too."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(2, 3))
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 2)
        self.embed = self.layer if shared else nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        learned = torch.tanh(self.embed(self.tokens))
        return self.head(torch.tanh(self.layer(x)) * learned.prod(0))


class ClassToken(nn.Module):
    """A learned token before the others."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(1, 4, 4))
        self.mix = nn.TransformerEncoderLayer(4, 2, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        return self.mix(x)[:, 0]


class Positions(nn.Module):
    """Embeddings of positions, looked up without the data."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(3, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(x + self.table(torch.arange(x.shape[1])))).mean(1)


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.both = nn.Linear(3, 2), nn.Bilinear(2, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.both(torch.tanh(self.first(x)), x)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.last = nn.EmbeddingBag(5, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.bag((x.abs() * 10).long() % 5))


class Packed(nn.Module):
    """Sequences of different length in one packed sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.full((len(x),), 3)
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        return self.last(self.cell(packed)[1][0][0])


class Attention(nn.Module):
    """Learned keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(4, 2, add_bias_kv=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x, x, x)[0].mean(1)


def normed() -> nn.Module:
    return nn.Sequential(weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2))


def projected() -> nn.Module:
    """An LSTM with projections, which has no rule."""

    class Net(Packed):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTM(2, 4, batch_first=True, proj_size=3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.cell(x)[0][:, -1])

    return Net()


V = lambda: randn(4, 3)  # noqa: E731
S = lambda: randn(4, 3, 2)  # noqa: E731
CELL = {f"cell.{name}" for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")}
NORM = {f"0.parametrizations.weight.original{i}" for i in (0, 1)}

NETWORKS = {
    "einsum": (Einsum, V, {"w"}),
    "w @ x": (LeftProduct, V, {"w"}),
    "x / exp w": (Divided, V, {"w"}),
    "columns of a weight": (Columns, V, {"w"}),
    "custom function": (Custom, V, {"w"}),
    "custom function of a whole weight": (CustomWhole, V, {"w"}),
    "ruled and not": (Both, V, {"w"}),
    "ruled and in a custom function": (RuledAndCustom, V, {"w"}),
    "without a gradient": (NoGrad, V, {"w"}),
    "detached": (Detached, V, {"w"}),
    ".data": (Data, V, {"w"}),
    "tanh w": (Hyper, V, {"w"}),
    "hypernetwork": (Generated, V, {"code", "make.weight", "make.bias"}),
    "learned tokens": (lambda: Tokens(False), V, {"tokens", "embed.weight", "embed.bias"}),
    "learned tokens, shared layer": (lambda: Tokens(True), V, {"tokens", "layer.weight", "layer.bias"}),
    "class token": (ClassToken, lambda: randn(4, 3, 4), {"token"}),
    "embedded positions": (Positions, S, {"table.weight"}),
    "bilinear": (Bilinear, V, {"both.weight", "both.bias"}),
    "embedding bag": (Bag, V, {"bag.weight"}),
    "weight norm": (normed, V, NORM),
    "packed LSTM": (Packed, S, CELL),
    "projected LSTM": (projected, S, {*CELL, "cell.weight_hr_l0"}),
    "learned keys and values": (Attention, lambda: randn(4, 3, 4), {"mix.bias_k", "mix.bias_v"}),
}


def built(make) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double().eval()


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_left_and_the_products(name):
    """One warning, the other weights by rules, and every product right."""
    make, inputs, names = NETWORKS[name]
    assert_right(built(make), inputs(), names)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_one_example(name):
    make, inputs, names = NETWORKS[name]
    module, x = built(make), inputs()
    with falls_back():
        features = engine(module, x[:1])
    assert left(features) == names
    close(features.jacobian(x[:1]), explicit(module, x[:1]))


def test_a_strided_bias():
    """A bias that is not one piece of memory, beside a weight that is no weight of the network."""
    module = built(StridedBias)
    with falls_back():
        features = engine(module, V())
    assert "w" in left(features)
    close(features.jacobian(V()), explicit(module, V()))


def test_weights_that_have_no_derivative():
    """Zero, also if the general engine takes them."""
    module = built(OnlyWithoutGradient)
    features = engine(module, V())
    close(features.jacobian(V()), explicit(module, V()))


@pytest.mark.filterwarnings("ignore:No layer rule")
def test_weights_that_have_no_derivative_yet():
    """Dead on the first examples, alive on later ones."""

    class Dead(Net):
        def middle(self, x: Tensor) -> Tensor:
            return x + torch.einsum("ni,io->no", torch.relu(x), self.w)

    module, inputs = built(Dead), 10 * V()
    torch.nn.init.constant_(module.first.bias, -0.1)
    inputs[:3] = 0
    assert (module.first(inputs[:3]) < 0).all()
    assert (module.first(inputs[3:]) > 0).any()
    features = engine(module, inputs)
    close(features.jacobian(inputs), explicit(module, inputs))


def test_the_message_names_the_weights():
    with pytest.warns(UserWarning, match=r"weights w, 38% of all.*CONTRIBUTING"):
        engine(built(Einsum), V())


def test_unused_weights_need_no_fallback():
    """Their derivative is zero."""
    module = built(lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh()))
    module.register_parameter("unused", nn.Parameter(randn(4)))
    assert_right(module, V())


def test_unused_at_the_end():
    """A layer whose result is thrown away."""

    class Wasteful(Net):
        def middle(self, x: Tensor) -> Tensor:
            F.linear(x, self.w)
            return x

    assert_right(built(Wasteful), V())


class Expanded(nn.Module):
    """Learned numbers that are repeated for each example, which for one example changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.head = nn.Parameter(torch.randn(1, 2, 3)), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x[:, None] + self.w.expand(len(x), -1, -1))).mean(1)


class LearnedState(nn.Module):
    """A recurrent layer that begins with a learned state."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.cell = nn.Parameter(torch.randn(1, 1, 2)), nn.GRU(3, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x[:, None], self.state.expand(1, len(x), 2).contiguous())[0][:, 0]


@pytest.mark.parametrize("make", [Expanded, LearnedState])
@pytest.mark.parametrize("count", [1, 4])
def test_repeated_for_each_example(make, count):
    """Learned from N examples; then one alone, and all."""
    module, x = built(make), V()
    features = engine(module, x[:count])
    close(features.jacobian(x), explicit(module, x))
    close(features.jacobian(x[:1]), explicit(module, x[:1]))


def test_kept_factors():
    """The gram matrix of a data set, with rows for some weights and factors for the others."""
    module, x = built(Einsum), randn(9, 3)
    with falls_back():
        features = engine(module, x)
    J = explicit(module, x).flatten(0, 1)
    close(FactoredJacobian(features, x, None, constant(features)).gram(), J @ J.T / 2.5)


class HalfDetached(nn.Module):
    """A weight without a derivative beside a bias with one, in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(F.linear(x, self.a.weight.detach(), self.a.bias)))


@pytest.mark.filterwarnings("ignore:No layer rule")
def test_weights_of_one_call_go_together():
    module = built(HalfDetached)
    features = engine(module, V())
    close(features.jacobian(V()), explicit(module, V()))


class Permuted(nn.Module):
    """Examples ordered by value through products with a matrix: nothing in the functions' names shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        rank = (x[:, None, 0] > x[None, :, 0]).sum(1)
        order = (rank[:, None] == torch.arange(len(x))).to(x.dtype)
        return self.b(order @ torch.tanh(self.a(order.T @ x)))


def test_examples_ordered_without_a_trace():
    module, x = built(Permuted), randn(20, 3)
    x[:3, 0] = torch.tensor([-3.0, -2.0, -1.0])
    x[3:, 0] = x[3:, 0].abs()
    features = engine(module, x)
    with pytest.raises(NetworkError, match="JacobianFeatures"):
        features.jacobian(x)
