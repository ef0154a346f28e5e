"""The maps of a FigureResult that a reader can point at."""

from __future__ import annotations

import numpy as np

from dnn2gp.paper.figure_result import FigureResult
from dnn2gp.paper.images import LAPLACE, VI, WORDS
from dnn2gp.plots.report import Examples, InteractiveMap

_KERNEL = "tr κ(x, x′)"
_MEAN = (
    "Each row is an example, each column an output of the network. J μ is not what the network puts out: f − J w is "
    "missing from it."
)


def images(result: FigureResult) -> tuple[InteractiveMap, ...]:
    """Kernel and posterior mean of each method."""
    own, found = result.arrays, []
    for method in (method for method in (LAPLACE, VI) if f"{method}_kernel" in own):
        examples, outputs = _examples(result, method), _outputs(result)
        found.append(_kernel(f"Kernel, {WORDS[method]}", own[f"{method}_kernel"], examples))
        found.append(
            InteractiveMap(
                title=f"Posterior mean, {WORDS[method]}",
                values=own[f"{method}_posterior_mean"],
                columns=outputs,
                examples=examples,
                scale="J(x) μ",
                description=_MEAN,
            )
        )
    return tuple(found)


def ood(result: FigureResult) -> tuple[InteractiveMap, ...]:
    """The kernel between digits and clothes."""
    own, found = result.arrays, []
    names = tuple(map(str, own["digit_names"])), tuple(map(str, own["clothes_names"]))
    for method in (method for method in (LAPLACE, VI) if f"{method}_kernel" in own):
        probabilities = own[f"{method}_few_probabilities"]
        examples = Examples(
            images=own["images"],
            labels=np.concatenate([own["digits"], own["clothes"] + len(names[0])]),
            classes=(*names[0], *names[1]),
            predictions=probabilities.argmax(1),
            probabilities=probabilities.max(1),
            epistemic=own[f"{method}_few_epistemic"],
            aleatoric=own[f"{method}_few_aleatoric"],
        )
        found.append(_kernel(f"Kernel between digits and clothes, {WORDS[method]}", own[f"{method}_kernel"], examples))
    return tuple(found)


def _kernel(title: str, values: np.ndarray, examples: Examples) -> InteractiveMap:
    words = "Each row and each column is an example; an entry says how alike the two are to the network."
    return InteractiveMap(title=title, values=values, columns=None, examples=examples, scale=_KERNEL, description=words)


def _examples(result: FigureResult, method: str) -> Examples:
    own = result.arrays
    probabilities, outputs = own[f"{method}_probabilities"], np.array(_trained(result))
    return Examples(
        images=own["images"],
        labels=own["labels"],
        classes=tuple(map(str, own["classes"])),
        predictions=outputs[probabilities.argmax(1)],
        probabilities=probabilities.max(1),
        epistemic=own[f"{method}_epistemic"].sum(1),
        aleatoric=own[f"{method}_aleatoric"].sum(1),
    )


def _trained(result: FigureResult) -> list[int]:
    """The classes that the outputs of the network stand for."""
    return list(result.config["classes"]) or list(range(len(result.arrays["classes"])))


def _outputs(result: FigureResult) -> tuple[str, ...]:
    return tuple(str(result.arrays["classes"][place]) for place in _trained(result))
