"""Users' tables: read from a file, checked, and encoded by scikit-learn as numbers for a network.

Start with `table.py`, which reads files, then `columns.py` and `encoding.py`.
"""

from dnn2gp.support.optional import needs_extra

with needs_extra("cli", "dnn2gp.apps.tables"):
    from dnn2gp.apps.tables.columns import TASKS, ClassTarget, Columns, NumberTarget, Target, choose_columns
    from dnn2gp.apps.tables.encoding import Encoder
    from dnn2gp.apps.tables.table import Table, read_table

__all__ = [
    "TASKS",
    "ClassTarget",
    "Columns",
    "Encoder",
    "NumberTarget",
    "Table",
    "Target",
    "choose_columns",
    "read_table",
]
