"""Packages outside the base install: imported where they are used, with an error that names the extra to install.

with needs_extra("tune", "tune.grid"):
    import joblib
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dnn2gp.support.errors import MissingExtraError


@contextmanager
def needs_extra(extra: str, feature: str) -> Iterator[None]:
    """Raise a `MissingExtraError` if an import in the block fails because a package is not installed.

    Args:
        extra: The extra of pyproject.toml that installs the package.
        feature: What needs the package, in the words of the message.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "dnn2gp"):  # a mistake of ours, which must not be hidden
            raise
        raise MissingExtraError(
            f'{feature} needs the package {package}, which is not installed: pip install "dnn2gp[{extra}]"',
            name=package,
        ) from error
