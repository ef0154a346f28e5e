"""Packages that are not installed: a typed error that names the extra, and no other error in its place."""

from __future__ import annotations

import sys

import pytest

from dnn2gp.support.errors import MissingExtraError
from dnn2gp.support.optional import needs_extra


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r'tune\.study .*optuna.*pip install "dnn2gp\[tune\]"') as caught:  # noqa: SIM117
        with needs_extra("tune", "tune.study"):
            import optuna.trial  # noqa: F401
    assert caught.value.name == "optuna"
    assert isinstance(caught.value, ImportError)


def test_a_missing_module_of_our_own_is_not_hidden() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"dnn2gp\.nothing"), needs_extra("tune", "tune.study"):
        import dnn2gp.nothing  # type: ignore[import-not-found] # noqa: F401


def test_other_errors_pass() -> None:
    with pytest.raises(ImportError, match="nothing") as caught, needs_extra("tune", "tune.study"):
        from json import nothing  # type: ignore[attr-defined] # noqa: F401
    assert not isinstance(caught.value, MissingExtraError)
