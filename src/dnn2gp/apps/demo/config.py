"""The configuration of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dnn2gp.support.errors import InputError
from dnn2gp.support.numbers import positive_number, seed_number, whole_number


@dataclass(frozen=True)
class DemoConfig:
    """The settings of the demo; `preset` gives the two usual ones."""

    out: Path = Path("dnn2gp-demo")
    seed: int = 0
    num_train: int = 1200
    channels: tuple[int, int] = (8, 16)
    """Output channels of the two convolutions."""
    prior_precision: float = 2.0
    """δ. Among 0.1, 0.3, 1, 2 and 4, the log evidence is largest at 1 (2 nats above 0.3, and 31 above 2), but there the
    predictions averaged over the posterior are still far underconfident: the NLL of the Monte Carlo prediction on the
    test digits is 1.5 at 0.1, 0.42 at 1 and 0.27 at 2. Beyond 2 the network itself gets worse."""
    adam_epochs: int = 100
    lbfgs_steps: int = 250
    per_class: int = 30
    """Test examples per class in the pictures of matrices."""
    num_samples: int = 1000
    """Samples of the Monte Carlo prediction."""

    @staticmethod
    def preset(name: str) -> DemoConfig:
        """The preset "default", or "smoke", which is small and takes a few seconds."""
        presets = {
            "default": DemoConfig(),
            "smoke": DemoConfig(
                num_train=150, channels=(2, 3), adam_epochs=20, lbfgs_steps=150, per_class=4, num_samples=50
            ),
        }
        if name not in presets:
            raise InputError(f"preset: expected one of {', '.join(presets)}; got {name!r}.")
        return presets[name]

    def check(self) -> None:
        """Raise an `InputError` for invalid settings."""
        seed_number("seed", self.seed)
        for name in ("num_samples", "per_class"):
            whole_number(name, getattr(self, name))
        for name in ("adam_epochs", "lbfgs_steps"):
            whole_number(name, getattr(self, name), 0)
        if not 10 <= whole_number("num_train", self.num_train) <= 1297:
            raise InputError(f"num_train: expected 10 to 1297, which leaves 500 test digits; got {self.num_train}.")
        positive_number("prior_precision", self.prior_precision)
