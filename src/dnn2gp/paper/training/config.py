"""The configuration of `dnn2gp train`, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from dnn2gp.support.errors import InputError
from dnn2gp.weights.step_checks import check_positive, check_rate

METHODS = ("vogn", "ogn", "adam")
_RATES = {"vogn": 0.03, "ogn": 0.03, "adam": 1e-3}


@dataclass(frozen=True)
class TrainConfig:
    """One training. The learning rate decays to a hundredth of its initial value, along a cosine."""

    data: str = "mnist"
    method: str = "vogn"
    epochs: int = 20
    batch_size: int = 128
    lr: float | None = None
    """β of VOGN and OGN, or Adam's rate; None: the default of the method."""
    precision_lr: float | None = None
    """β' of VOGN and OGN; None: 6 / steps, at most 1e-3.

    A fraction (1 − β')^steps of the initial precision, e⁻⁶ or more, is left at the end; with many data it still counts.
    """
    prior_precision: float = 3.0
    """δ of the summed loss; Adam gets the weight decay δ / N."""
    initial_precision: float | None = None
    """Σ_0⁻¹; None: N / (10 T)."""
    temperature: float = 1.0
    """T of a posterior ∝ p(D|w)^{1/T} p(w); below 1 for few data, where T = 1 stays near the prior."""
    momentum: float = 0.9
    num_samples: int = 1
    networks: int = 30
    """Networks w ~ q whose predictions are averaged."""
    num_train: int | None = None
    """Training examples; None: all."""
    flip: bool = False
    """Whether images are flipped left to right at random, for photographs."""
    checkpoint_seconds: float = 20.0
    seed: int = 0
    out: Path = Path("dnn2gp-train")

    @staticmethod
    def preset(name: str) -> TrainConfig:
        """`paper`, or `smoke`: a small training, to see that everything works."""
        if name == "smoke":
            return TrainConfig(
                epochs=2, batch_size=32, num_train=200, networks=2, temperature=0.01, checkpoint_seconds=0.0
            )
        return TrainConfig()

    @property
    def rate(self) -> float:
        """The initial learning rate."""
        return _RATES[self.method] if self.lr is None else self.lr

    @property
    def folder(self) -> Path:
        """The folder of this method."""
        return self.out / self.method

    def with_method(self, method: str) -> TrainConfig:
        """The same training by another method, with the default learning rate of that method."""
        return replace(self, method=method, lr=None)

    def check(self) -> None:
        """Raise `InputError` for the first setting that is out of range."""
        if self.method not in METHODS:
            raise InputError(f"optimizer: expected one of {', '.join(METHODS)}; got {self.method!r}.")
        for name in ("epochs", "batch_size", "num_samples", "networks"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: expected at least 1; got {getattr(self, name)}.")
        if self.num_train is not None and self.num_train < self.batch_size:
            raise InputError(f"batch_size: expected at most num_train = {self.num_train}; got {self.batch_size}.")
        (check_positive if self.method == "adam" else check_rate)("lr", self.rate)
        check_positive("temperature", self.temperature)
        check_positive("prior_precision", self.prior_precision)
        if self.initial_precision is not None:
            check_positive("initial_precision", self.initial_precision)
        if self.precision_lr is not None:
            check_rate("precision_lr", self.precision_lr)
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum: expected a number in [0, 1); got {self.momentum}.")

    def fingerprint(self) -> dict[str, object]:
        """Everything that changes the result, which a checkpoint must agree with to be resumed."""
        left_out = {"out", "checkpoint_seconds", "networks"}
        return {name: value for name, value in vars(self).items() if name not in left_out}
