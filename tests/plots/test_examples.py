"""The picture of single examples: every one in the scatter, the right ones in the galleries, in the right order."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from dnn2gp.plots import uncertainty
from dnn2gp.plots.style import WRONG

COUNT = 30


def draw(num_examples: int = 10, count: int = COUNT, **changes: np.ndarray) -> tuple[Figure, dict[str, np.ndarray]]:
    """The picture of random examples, every fifth of them predicted wrongly; example i has all pixels i."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, count)
    arrays = {
        "epistemic": generator.uniform(0.01, 1, count),
        "aleatoric": generator.uniform(0.01, 1, count),
        "images": np.arange(count, dtype=float)[:, None, None] * np.ones((count, 8, 8)),
        "labels": labels,
        "predictions": np.where(np.arange(count) % 5 == 0, (labels + 1) % 10, labels),
        "probabilities": generator.uniform(0.3, 1, count),
    } | changes
    return uncertainty(**arrays, num_examples=num_examples), arrays


def galleries(figure: Figure) -> dict[str, list[int]]:
    """Title -> the examples whose images it shows."""
    found = {}
    for part in figure.subfigs[1:]:
        title = part.get_suptitle()
        found[title] = [int(axes.get_images()[0].get_array()[0, 0]) for axes in part.axes if axes.get_images()]
    return found


def test_scatter_holds_every_example_right_and_wrong_apart() -> None:
    figure, data = draw()
    axes = figure.axes[0]
    right, wrong = (c for c in axes.collections if isinstance(c, PathCollection))
    points = np.stack([data["aleatoric"], data["epistemic"]], axis=1)
    correct = data["predictions"] == data["labels"]
    assert np.allclose(right.get_offsets(), points[correct])
    assert np.allclose(wrong.get_offsets(), points[~correct])
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["correct (24)", "wrong (6)"]


def test_galleries_show_the_extremes_of_the_sum() -> None:
    figure, data = draw()
    order = np.argsort(data["epistemic"] + data["aleatoric"])
    shown = galleries(figure)
    assert [title.split(":")[0] for title in shown] == ["Least certain", "Most certain"]
    assert list(shown.values()) == [order[::-1][:10].tolist(), order[:10].tolist()]


def test_text_under_an_image() -> None:
    figure, data = draw()
    index = int(np.argmax(data["epistemic"] + data["aleatoric"]))
    (text,) = figure.subfigs[1].axes[0].texts
    truth, guess, p = (data[key][index] for key in ("labels", "predictions", "probabilities"))
    assert text.get_text() == f"true {truth}, predicted {guess}\np = {p:.2f}"


def test_wrong_predictions_are_red() -> None:
    figure, data = draw()
    seen = {True: 0, False: 0}
    for part in figure.subfigs[1:]:
        for axes in part.axes:
            index = int(axes.get_images()[0].get_array()[0, 0])
            wrong = bool(data["predictions"][index] != data["labels"][index])
            seen[wrong] += 1
            assert axes.texts[0].get_color() == (WRONG if wrong else "black")
    assert min(seen.values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3, 7])
def test_fewer_examples_than_places(count: int) -> None:
    figure, _ = draw(count=count)
    figure.canvas.draw()
    assert [len(indices) for indices in galleries(figure).values()] == [count, count]


def test_a_variance_of_zero_is_drawn() -> None:
    figure, _ = draw(epistemic=np.zeros(COUNT))
    figure.canvas.draw()
    points = np.concatenate([c.get_offsets() for c in figure.axes[0].collections if isinstance(c, PathCollection)])
    assert len(points) == COUNT
    assert (points > 0).all()


def test_no_wrong_prediction() -> None:
    _, data = draw()
    figure, _ = draw(predictions=data["labels"])
    figure.canvas.draw()
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert "wrong (0)" in [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epistemic": np.ones(COUNT - 1)}, "shapes"),
        ({"images": np.ones((COUNT, 64))}, "shapes"),
        ({"aleatoric": -np.ones(COUNT)}, "epistemic"),
        ({"aleatoric": np.full(COUNT, np.nan)}, "finite"),
    ],
)
def test_refusals(changes: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(**changes)
