"""Every test runs with the shapes and types of dnn2gp checked: the hook must be set before dnn2gp is first imported."""

from __future__ import annotations

import os
import sys

import checked_calls
import pytest
import torch
from hypothesis import HealthCheck, settings

if "dnn2gp" in sys.modules:
    raise RuntimeError("dnn2gp was imported before the jaxtyping hook: its shapes would go unchecked in the tests")
checked_calls.install("dnn2gp")

if "PYTEST_XDIST_WORKER" in os.environ:  # the workers, and the processes that they start, share the cores
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"

settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is no bug
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True, scope="module")
def _inner_checks_begin_anew():
    """Each file checks the first calls of every function that is defined inside another."""
    checked_calls.forget("inner")


@pytest.fixture(autouse=True)
def _checks_begin_anew():
    """Each test checks the first calls of every function."""
    checked_calls.forget()


@pytest.fixture
def blank_pictures(monkeypatch):
    """Pictures of a few pixels, where a test asks for files but does not look at them: to draw one takes a second."""
    import matplotlib.figure
    from PIL import Image

    def save(_, file, format=None, **__):
        Image.new("L", (4, 4)).save(file, format=format)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", save)
