"""Blocks: forms that store the Jacobian of a group of weights without forming it. Start with `base.py`."""

from dnn2gp.features.blocks.base import Arrangement, Block
from dnn2gp.features.blocks.lookup import Lookup
from dnn2gp.features.blocks.outer import Outer
from dnn2gp.features.blocks.rows import Rows

__all__ = ["Arrangement", "Block", "Lookup", "Outer", "Rows"]
