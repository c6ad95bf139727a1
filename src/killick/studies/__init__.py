"""Studies: each table and figure of the paper as an experiment that anyone can run, one file each.

Read one of them, such as `reference_size`, top to bottom; `study` says what a study is, and
`running` how it is run.
"""

import importlib

from killick.errors import check_option
from killick.studies.study import Study

NAMES = (
    *("reference-size", "inference", "landscape", "augmentation", "label-noise"),
    *("generalization", "safety", "alpha", "adaptation", "finetune"),
)


def find_study(name: str) -> Study:
    """The study with a name.

    Example:
        >>> find_study("alpha").item
        'Table 4'
    """
    check_option("the study", name, NAMES)
    module = importlib.import_module(f"killick.studies.{name.replace('-', '_')}")
    found: Study = module.STUDY
    return found
