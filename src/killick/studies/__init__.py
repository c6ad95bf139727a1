"""Studies: each table and figure of the paper as an experiment, one file or folder each.

In: a plan (which arms, sizes and seeds). Out: run folders, `study.csv` and a report. A study may import
everything but the command line. Read `alpha` first; `study` defines what a study is, `study_runner` runs it.
To add one, write a file that calls `STUDIES.register`; other packages offer an entry point `killick.studies`.
"""

import importlib
import pkgutil

from killick.studies.study import STUDIES, Study

_SHARED = ("findings", "paper_tables", "plots", "set_names", "study", "study_runner", "trained_job")


def study_names() -> tuple[str, ...]:
    """The names of all studies, without importing any of them."""
    own = _own_names()
    return (*own, *(name for name in STUDIES.names() if name not in own))


def find_study(name: str) -> Study:
    """The study with a name.

    Example:
        >>> find_study("alpha").item
        'Table 4'
    """
    own = _own_names()
    for each in [name] if name in own else own:
        importlib.import_module(f"{__name__}.{each.replace('-', '_')}")
    return STUDIES.find(name)


def _own_names() -> tuple[str, ...]:
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(name.replace("_", "-") for name in modules if name not in _SHARED)
