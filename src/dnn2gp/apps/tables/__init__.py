"""A user's table: read from a file, checked, and encoded as the numbers that a network takes."""

from dnn2gp.apps.tables.columns import Category, Column, Flag, Number
from dnn2gp.apps.tables.encoding import Encoder
from dnn2gp.apps.tables.kinds import feature_kinds
from dnn2gp.apps.tables.reading import read_table
from dnn2gp.apps.tables.table import Table
from dnn2gp.apps.tables.targets import ClassTarget, NumberTarget, Target

__all__ = [
    "Category",
    "ClassTarget",
    "Column",
    "Encoder",
    "Flag",
    "Number",
    "NumberTarget",
    "Table",
    "Target",
    "feature_kinds",
    "read_table",
]
