"""What ours has to reach, for each case and peer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a bound is on; the value is how the report writes it."""

    TIME = "time ≥ {:g} ×"  # the peer's time over ours
    MEMORY = "memory ≥ {:g} ×"  # the peer's peak over ours
    PEAK = "≤ {:g} MB"  # our peak
    SHARE = "≥ {:.0%} of peak"  # our operations per second over those of a matrix product
    EPOCHS = "≤ {:g} epochs"  # our time over the peer's
    COST = "time ≤ {:g} × its"  # the same
    MEMORY_COST = "memory ≤ {:g} × its"  # our peak over the peer's


_AT_MOST = (Kind.PEAK, Kind.EPOCHS, Kind.COST, Kind.MEMORY_COST)


@dataclass(frozen=True)
class Target:
    """A bound on ours, or on its ratio to a peer, in a case."""

    case: str
    peer: str
    kind: Kind
    bound: float

    def words(self) -> str:
        """As the report shows it."""
        return self.kind.value.format(self.bound)

    def met(self, figure: float) -> bool:
        """Whether a measured figure is within the bound."""
        return figure <= self.bound if self.kind in _AT_MOST else figure >= self.bound


_VMAP, _BACKPACK = "vmap-jacrev", "BackPACK"
_RELEASED = "released code's loop"

TARGETS: tuple[Target, ...] = (
    Target("trace-kernel/lenet5-float64", _RELEASED, Kind.TIME, 60),
    Target("trace-kernel/lenet5-float64", _VMAP, Kind.TIME, 6),
    Target("trace-kernel/lenet5-float64", _VMAP, Kind.MEMORY, 5),
    Target("trace-kernel/lenet5-float64", "neural-tangents", Kind.TIME, 1),
    Target("trace-kernel/cifar", _VMAP, Kind.TIME, 8),
    Target("full-kernel/lenet5-300", _VMAP, Kind.TIME, 14),
    Target("full-kernel/lenet5-1000", _VMAP, Kind.TIME, 14),
    Target("full-kernel/lenet5-1000", "dnn2gp", Kind.PEAK, 800),
    Target("full-kernel/lenet5-1000", "dnn2gp, budget of 500 MB, into a file", Kind.PEAK, 550),
    Target("architectures/resnet", _VMAP, Kind.TIME, 2),
    Target("architectures/transformer", _VMAP, Kind.TIME, 2),
    Target("neural-tangents/full", "neural-tangents", Kind.TIME, 1),
    Target("neural-tangents/trace", "neural-tangents", Kind.TIME, 1),
    *(
        Target(f"ggn-diagonal/lenet5-{size}", peer, Kind.TIME, bound)
        for size in (1000, 10_000)
        for peer, bound in (
            (_RELEASED, 100),
            ("curvlinops, Jacobian operators", 6),
            (_BACKPACK, 1.4),
        )
    ),
    Target("variance/diagonal", "laplace-torch, BackPACK backend", Kind.TIME, 10),
    Target("variance/diagonal", "laplace-torch, default backend, batches of 32", Kind.TIME, 150),
    Target("variance/diagonal", _VMAP, Kind.TIME, 7),
    Target("kernel-vector/1", "autograd's vjp and jvp", Kind.TIME, 6),
    Target("kernel-vector/32", "autograd's vjp and jvp", Kind.TIME, 15),
    Target("peak/full-kernel", "torch.mm", Kind.SHARE, 0.60),
    Target("peak/trace-kernel", "torch.mm", Kind.SHARE, 0.50),
    Target("peak/ggn-diagonal", "torch.mm", Kind.SHARE, 0.25),
    Target("mnist/ggn-diagonal", "one epoch of Adam", Kind.EPOCHS, 4),
    Target("mnist/kronecker-factors", "one epoch of Adam", Kind.EPOCHS, 4),
    Target("optimizers/vogn-lenet5", "Adam", Kind.COST, 2.5),
    Target("optimizers/vogn-lenet5", "Adam", Kind.MEMORY_COST, 2),
    Target("optimizers/ogn-lenet5", "Adam", Kind.COST, 2.5),
    Target("optimizers/ogn-lenet5", "Adam", Kind.MEMORY_COST, 2),
)
