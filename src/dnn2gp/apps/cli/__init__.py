"""The command line: one file per command, and `main.py`, which puts them together.

Commands import heavy libraries when they run, so that `dnn2gp --help` answers at once.
"""

from dnn2gp.support.optional import needs_extra

with needs_extra("cli", "The command line"):
    from dnn2gp.apps.cli.main import app, run

__all__ = ["app", "run"]
