"""Comparisons: arms x seeds as cells, each a run folder; on this machine or on a Ray cluster."""

from typing import TYPE_CHECKING, Any

from killick.grid.arms import KNOWN, Arm, parse_arm

if TYPE_CHECKING:
    from killick.grid.cells import Cell as Cell
    from killick.grid.cells import make_cells as make_cells
    from killick.grid.comparing import Compared as Compared
    from killick.grid.comparing import compare as compare

__all__ = ["KNOWN", "Arm", "Cell", "Compared", "compare", "make_cells", "parse_arm"]


def __getattr__(name: str) -> Any:
    """What trains, when it is asked for: it needs torch, which takes seconds to import."""
    if name in ("Compared", "compare"):
        from killick.grid import comparing

        return getattr(comparing, name)
    if name in ("Cell", "make_cells"):
        from killick.grid import cells

        return getattr(cells, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
