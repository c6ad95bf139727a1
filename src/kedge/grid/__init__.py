"""Comparisons: arms x seeds as cells, each a run folder; on this machine or on a Ray cluster."""

from kedge.grid.arms import KNOWN, Arm, parse_arm
from kedge.grid.cells import Cell, make_cells
from kedge.grid.comparing import Compared, compare

__all__ = ["KNOWN", "Arm", "Cell", "Compared", "compare", "make_cells", "parse_arm"]
