"""A report about nothing: small made-up examples and maps, the same at every run."""

from __future__ import annotations

import numpy as np

from dnn2gp.plots.report import Examples, InteractiveMap, Section
from dnn2gp.plots.report.section import Claim

CLASSES = ("cat", "dog <b>&", "ship")
OUTPUTS = ("cat", "dog <b>&", "ship", "none of these")
# A PNG of one black pixel.
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010800000000"
    "3a7e9b550000000a49444154789c6360000000020001e221bc33"
    "0000000049454e44ae426082"
)


def examples(count: int = 12, *, colour: bool = False, seed: int = 0) -> Examples:
    """Noise as images; every fourth prediction is wrong."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, len(CLASSES), count)
    wrong = np.arange(count) % 4 == 3
    return Examples(
        images=random.integers(0, 256, (count, 5, 6, 3) if colour else (count, 5, 6), dtype=np.uint8),
        labels=labels,
        classes=CLASSES,
        predictions=np.where(wrong, (labels + 1) % len(CLASSES), labels),
        probabilities=random.uniform(0.4, 1, count),
        epistemic=random.gamma(2, 0.1, count),
        aleatoric=random.gamma(2, 0.05, count),
    )


def kernel(given: Examples, seed: int = 1) -> np.ndarray:
    """N × N, symmetric, positive definite."""
    features = np.random.default_rng(seed).normal(size=(len(given), 5))
    return features @ features.T + 0.1 * np.eye(len(given))


def kernel_map(given: Examples, title: str = "Kernel") -> InteractiveMap:
    return InteractiveMap(title, kernel(given), None, given, "κ(x, x′) & <i>more</i>", "Which examples are alike.")


def mean_map(given: Examples) -> InteractiveMap:
    values = np.random.default_rng(2).normal(size=(len(given), len(OUTPUTS)))
    return InteractiveMap("Posterior mean", values, OUTPUTS, given, "E[f(x) | data]", "What the GP expects.")


def claims() -> tuple[Claim, ...]:
    return (
        Claim("accuracy", "99 %", "99.1 %", True),
        Claim("blocks", "ten", "nine", False),
        Claim("time", "not told", "3 s", None),
    )


def section(name: str = "fig4", **changes: object) -> Section:
    """A section without maps, unless told."""
    given: dict[str, object] = {
        "name": name,
        "title": f"The figure {name}",
        "caption": "What is to be seen.\n\nAnd what is not.",
        "pictures": {"A pixel": PIXEL},
        "config": {"seed": 3, "sizes": [1, 2], "nested": {"a": None}},
        "seconds": 75.2,
        "claims": claims(),
    }
    return Section(**(given | changes))  # type: ignore[arg-type]
