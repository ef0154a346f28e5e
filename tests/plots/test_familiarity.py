"""Pictures of familiar and unfamiliar images: the examples of a row stand for all of its images."""

from __future__ import annotations

import numpy as np
import pytest

from dnn2gp.plots.familiarity import ImageSet, familiarity


@pytest.mark.parametrize("count", [1, 6, 97])
def test_as_many_examples_are_unfamiliar_as_the_histogram_says(count: int):
    """With half of the images above the threshold, half of the six examples are; in the order of their doubt."""
    random = np.random.default_rng(0)
    doubt = random.permutation(np.arange(count, dtype=float))
    own = ImageSet("digits", random.random((count, 4, 4)), np.ones(count), np.zeros(count, dtype=int), doubt)
    figure = familiarity([own], threshold=(count - 1) / 2)
    words = [axes.get_xlabel() for axes in figure.axes[:6]]
    assert words == sorted(words)
    if count > 1:
        assert words == ["familiar"] * 3 + ["unfamiliar"] * 3
