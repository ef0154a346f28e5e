"""The grammar of the network fuzzer: a stem, up to three layers with wrappers, a readout, and how it is converted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from robust.layer_forms import WIDTH, folded, weight
from robust.random_layers import LAYERS, MUST_REFUSE

TOKENS, LENGTH = 7, 4


# Wrappers: what a layer is put into -----------------------------------------------------------------------------------


class Residual(nn.Module):
    """h + layer(h)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, h: Tensor) -> Tensor:
        return h + folded(self.layer(h))


class Branches(Residual):
    """Two branches, one of them a layer of its own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer)
        self.other = nn.Linear(WIDTH, 3)

    def forward(self, h: Tensor) -> Tensor:
        return torch.cat([folded(self.layer(h)), torch.tanh(self.other(h)), h[:, :2]], 1)


class Twice(Residual):
    """A layer whose weights are used twice."""

    def forward(self, h: Tensor) -> Tensor:
        return folded(self.layer(torch.tanh(folded(self.layer(h)))))


class Checkpointed(Residual):
    """A layer that is computed again in the backward pass."""

    def forward(self, h: Tensor) -> Tensor:
        return folded(checkpoint(self.layer, h, use_reentrant=False))


class Bounded(Residual):
    """tanh of a layer."""

    def forward(self, h: Tensor) -> Tensor:
        return torch.tanh(folded(self.layer(h)))


def frozen(layer: nn.Module) -> nn.Module:
    """A layer that is not trained."""
    return layer.requires_grad_(False)


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "": lambda layer: layer,
    "bounded": Bounded,
    "residual": Residual,
    "branches": Branches,
    "twice": Twice,
    "checkpointed": Checkpointed,
    "all frozen": frozen,
}


# Stems: from the inputs to vectors of 16 numbers ----------------------------------------------------------------------


class Tokens(nn.Module):
    """Tokens through a table; the vectors of an example side by side."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table

    def forward(self, tokens: Tensor) -> Tensor:
        return folded(self.table(tokens))


class Weighted(Tokens):
    """A bag whose tokens have weights, which are trained too."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__(table)
        self.amounts = nn.Parameter(torch.rand(LENGTH) + 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        return folded(self.table(tokens, per_sample_weights=self.amounts.expand(len(tokens), LENGTH)))


STEMS: dict[str, Callable[[], nn.Module]] = {
    "vector": nn.Identity,
    "Embedding": lambda: Tokens(nn.Embedding(TOKENS, 3)),
    "Embedding, padded": lambda: Tokens(nn.Embedding(TOKENS, 4, padding_idx=2)),
    "Embedding, max_norm": lambda: Tokens(nn.Embedding(TOKENS, 4, max_norm=1.0)),
    "EmbeddingBag": lambda: Tokens(nn.EmbeddingBag(TOKENS, 5, mode="mean")),
    "EmbeddingBag, padded sum": lambda: Tokens(nn.EmbeddingBag(TOKENS, 5, mode="sum", padding_idx=1)),
    "EmbeddingBag, maximum": lambda: Tokens(nn.EmbeddingBag(TOKENS, 5, mode="max")),
    "EmbeddingBag, weighted": lambda: Weighted(nn.EmbeddingBag(TOKENS, 5, mode="sum")),
    "pair": lambda: Tokens(nn.Embedding(TOKENS, 4)),
    "named": lambda: Tokens(nn.EmbeddingBag(TOKENS, 4)),
}
REFUSED_STEMS: dict[str, Callable[[], nn.Module]] = {
    "Embedding, scaled gradient": lambda: Tokens(nn.Embedding(TOKENS, 3, scale_grad_by_freq=True)),
    "Embedding, sparse gradient": lambda: Tokens(nn.Embedding(TOKENS, 3, sparse=True)),
}


# Readouts: from 16 numbers to K outputs -------------------------------------------------------------------------------


class Product(nn.Module):
    """h @ W / 2."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.w = nn.Parameter(weight(WIDTH, outputs))

    def forward(self, h: Tensor) -> Tensor:
        return h @ self.w / 2


class Functional(nn.Module):
    """F.linear of a scaled weight."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(weight(outputs, WIDTH)), nn.Parameter(torch.zeros(outputs))

    def forward(self, h: Tensor) -> Tensor:
        return F.linear(h, 0.5 * self.w, self.b)


class First(nn.Module):
    """The first features, without weights."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, h: Tensor) -> Tensor:
        return h[:, : self.outputs]


READOUTS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda outputs: nn.Linear(WIDTH, outputs),
    "product": Product,
    "functional": Functional,
    "first features": First,
}


# A whole network ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spec:
    """A network by the names of its parts, and how it is converted."""

    stem: str
    layers: tuple[tuple[str, str], ...]
    """Kinds of layers and their wrappers."""
    readout: str
    output_shape: tuple[int, ...]
    seed: int
    likelihood: int
    """A number that stands for one of the likelihoods that take these outputs."""
    structure: str
    inference: str
    engine: str
    expansion: str
    delta: str
    subset: str
    double: bool
    training: bool
    examples: int

    @property
    def kinds(self) -> list[str]:
        """The names of all parts."""
        wrappers = [wrapper for _, wrapper in self.layers if wrapper]
        return [self.stem, *(kind for kind, _ in self.layers), *wrappers, f"readout: {self.readout}"]

    @property
    def has_refused_kind(self) -> bool:
        """Whether it has a part that is refused, unless other layers hide it (a sign, a constant)."""
        return self.stem in REFUSED_STEMS or any(kind in MUST_REFUSE for kind, _ in self.layers)

    @property
    def must_be_refused(self) -> bool:
        """Whether it has such a part, and nothing that could hide it."""
        return self.stem in REFUSED_STEMS or (self.has_refused_kind and self.stem == "vector" and len(self.layers) == 1)


class Net(nn.Module):
    """Stem, layers and readout; the outputs in their shape."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.stem = {**STEMS, **REFUSED_STEMS}[spec.stem]()
        kinds = {**LAYERS, **MUST_REFUSE}
        self.layers = nn.ModuleList(WRAPPERS[wrapper](kinds[kind]()) for kind, wrapper in spec.layers)
        self.readout = READOUTS[spec.readout](torch.Size(spec.output_shape).numel())
        self.output_shape = spec.output_shape

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.stem(x))

    def rest(self, h: Tensor) -> Tensor:
        for layer in self.layers:
            h = folded(layer(h))
        return self.readout(h).reshape(len(h), *self.output_shape)


class PairNet(Net):
    """Two inputs: a vector and tokens."""

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.rest(torch.tanh(x) + self.stem(tokens))


def build(spec: Spec) -> nn.Module:
    """The network by torch's generator, in its dtype and mode, with a gradient that must be left alone."""
    module = (PairNet if spec.stem in ("pair", "named") else Net)(spec)
    module = module.to(torch.float64 if spec.double else torch.float32).train(spec.training)
    for parameter in list(module.parameters())[:1]:
        parameter.grad = torch.ones_like(parameter)
    return module


def inputs_of(spec: Spec, count: int) -> Tensor | tuple[Tensor, Tensor] | dict[str, Tensor]:
    """Inputs for this many examples, by torch's generator."""
    x = torch.randn(count, WIDTH).to(torch.float64 if spec.double else torch.float32)
    tokens = torch.randint(TOKENS, (count, LENGTH))
    if spec.stem in ("pair", "named"):
        return (x, tokens) if spec.stem == "pair" else {"x": x, "tokens": tokens}
    return x if spec.stem == "vector" else tokens


# Drawing one ----------------------------------------------------------------------------------------------------------

OPTIONS: dict[str, list] = {
    "readout": ["linear", "linear", "product", "functional", "first features"],
    "output_shape": [(3,), (2,), (1,), (2, 2), ()],
    "structure": ["Dense", "Dense", "Dense", "Diagonal", "BlockDiagonal", "Kronecker"],
    "inference": ["", "weight", "function"],
    "engine": ["layerwise", "layerwise", "torch.func"],
    "expansion": ["gauss_newton", "gauss_newton", "gauss_newton", "empirical_fisher"],
    "delta": ["2.0", "0.3", "per layer"],
    "subset": ["", "", "last layer"],
    "double": [True, True, False],
    "training": [False, True],
    "examples": [5, 5, 4, 2, 1],
}
WRAPPED = ["", "", "", "bounded", "bounded", "residual", "branches", "twice", "checkpointed", "all frozen"]


def sensible(spec: Spec) -> Spec:
    """The spec without settings that contradict each other, which would only be refused."""
    changes: dict[str, object] = {}
    if spec.structure != "Dense":
        changes["inference"] = "weight"
    if spec.structure == "Kronecker":
        changes.update(engine="layerwise", expansion="gauss_newton")
    if spec.has_refused_kind:
        kept = tuple((kind, "" if wrapper == "all frozen" else wrapper) for kind, wrapper in spec.layers)
        changes.update(examples=5, subset="", layers=kept)
    if spec.readout == "first features":
        changes["subset"] = ""
        if all(wrapper == "all frozen" for _, wrapper in spec.layers):
            changes["layers"] = (*spec.layers, ("Linear", ""))
    return Spec(**{**vars(spec), **changes})


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """Any network of the grammar; one in ten must be refused."""
    options = {name: draw(st.sampled_from(values)) for name, values in OPTIONS.items()}
    layer = st.tuples(st.sampled_from(list(LAYERS)), st.sampled_from(WRAPPED))
    layers = draw(st.lists(layer, min_size=1, max_size=3))
    stem = draw(st.sampled_from(["vector"] * len(STEMS) + list(STEMS)))
    if draw(st.integers(0, 9)) == 9:
        refused = draw(st.sampled_from([*MUST_REFUSE, *REFUSED_STEMS]))
        stem = refused if refused in REFUSED_STEMS else stem
        layers = [(refused, ""), *layers[1:]] if refused in MUST_REFUSE else layers
    seed, likelihood = draw(st.integers(0, 9999)), draw(st.integers(0, 9))
    return sensible(Spec(stem=stem, layers=tuple(layers), seed=seed, likelihood=likelihood, **options))


def cover(rounds: int = 1) -> list[Spec]:
    """Networks in which every kind occurs, with random settings."""
    found = []
    for start in range(rounds):
        random = Random(start)
        kinds, stems, wrappers = list(LAYERS), list(STEMS), [name for name in WRAPPERS if name]
        random.shuffle(kinds)
        while kinds:
            options = {name: random.choice(values) for name, values in OPTIONS.items()}
            own = [kinds.pop() for _ in range(min(3, len(kinds)))]
            position = len(found)
            layers = tuple(
                (kind, wrappers[(position + place) % len(wrappers)] if place == 1 else "")
                for place, kind in enumerate(own)
            )
            stem = stems[position % len(stems)]
            spec = Spec(stem=stem, layers=layers, seed=position, likelihood=position, **options)
            found.append(sensible(spec))
        for position, name in enumerate([*MUST_REFUSE, *REFUSED_STEMS]):
            options = {key: random.choice(values) for key, values in OPTIONS.items()}
            stem = name if name in REFUSED_STEMS else "vector"
            layers = ((name if name in MUST_REFUSE else "dropout", ""),)
            found.append(sensible(Spec(stem=stem, layers=layers, seed=position, likelihood=position, **options)))
    return found
