"""The command line. Start with `main.py`, which has the short commands; `train` and `tune` have files of their own.

Commands import heavy libraries when they run, so that `dnn2gp --help` answers at once.
"""

from dnn2gp.support.optional import needs_extra

with needs_extra("cli", "The command line"):
    from dnn2gp.apps.cli.main import app, run

__all__ = ["app", "run"]
