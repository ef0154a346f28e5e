"""The configuration of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dnn2gp.support.errors import InputError
from dnn2gp.support.numbers import seed_number, whole_number


@dataclass(frozen=True)
class DemoConfig:
    """The settings of the demo; `preset` gives the two usual ones."""

    out: Path = Path("dnn2gp-demo")
    seed: int = 0
    num_train: int = 1200
    channels: tuple[int, int] = (8, 16)
    """Output channels of the two convolutions."""
    epochs: int = 60
    per_class: int = 30
    """Test examples per class in the pictures of matrices."""

    @staticmethod
    def preset(name: str) -> DemoConfig:
        """The preset "default", or "smoke", which is small and takes a few seconds."""
        presets = {"default": DemoConfig(), "smoke": DemoConfig(num_train=150, channels=(2, 3), epochs=60, per_class=4)}
        if name not in presets:
            raise InputError(f"preset: expected one of {', '.join(presets)}; got {name!r}.")
        return presets[name]

    def check(self) -> None:
        """Raise an `InputError` for invalid settings."""
        seed_number("seed", self.seed)
        whole_number("per_class", self.per_class)
        whole_number("epochs", self.epochs, 0)
        if not 10 <= whole_number("num_train", self.num_train) <= 1297:
            raise InputError(f"num_train: expected 10 to 1297, which leaves 500 test digits; got {self.num_train}.")
