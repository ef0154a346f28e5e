"""Tables of users: read from a file, checked, and encoded by scikit-learn as the numbers that a network takes."""

from dnn2gp.apps.tables.columns import Columns, choose_columns
from dnn2gp.apps.tables.encoding import Encoder
from dnn2gp.apps.tables.reading import read_table
from dnn2gp.apps.tables.table import Table
from dnn2gp.apps.tables.targets import TASKS, ClassTarget, NumberTarget, Target

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
