"""The suites of an evaluation, and checks of its options that need no torch.

The command line calls `check_options` before anything that takes seconds is imported.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from killick.corruptions.suites import check_severity
from killick.errors import OptionError, check_least, check_option

EVALUATION_SUITES = {
    "clean": "the test set: accuracy, NLL, Brier score, risk and coverage",
    "corruptions": "the 19 corruptions of ImageNet-C at five severities, generated or from files",
    "cbar": "the ten corruptions of C-bar, likewise",
    "calibration": "calibration errors of every set, also after temperature scaling",
    "ood": "detection of OOD images: AUROC, AUPR, FPR at 95 % TPR, by several scores",
    "shift": "shifted sets with the model's classes (ImageNet-R, -A, -V2, Sketch, ...)",
    "occlusion": "squares of the mean color over 10, 30, 50 and 70 % of the image",
    "adversarial": "FGSM and PGD-20 within 1, 2 and 8 gray levels of 255 (any network with gradients)",
    "conformal": "coverage and size of prediction sets of every set, by THR, APS and RAPS",
    "attention": "distance, entropy and more of each attention head on 1,000 images (transformers)",
    "references": "dependence on the choice of reference (anchored models)",
    "multiplicity": "ambiguity and discrepancy over references, dropout draws or ensemble members",
}
DEFAULT_SUITES = ("clean", "corruptions", "calibration", "ood")
# Options that add their suite to those that were chosen.
_IMPLIED = {
    "corruption_files": "corruptions",
    "cbar_files": "cbar",
    "shift": "shift",
    "ood": "ood",
}


def imply_suites(suites: str | Sequence[str], options: Mapping[str, Any]) -> tuple[str, ...]:
    """The chosen suites, and those that other options are for.

    Example:
        >>> imply_suites(("clean",), {"shift": {"sketch": "imagefolder:sketch"}})
        ('clean', 'shift')
    """
    chosen = (suites,) if isinstance(suites, str) else tuple(suites)
    implied = (suite for option, suite in _IMPLIED.items() if options.get(option))
    return tuple(dict.fromkeys((*chosen, *implied)))


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse values that no evaluation takes; what is not given is left alone."""
    if (precision := options.get("precision")) is not None:
        check_option("precision", precision, ["float32", "bfloat16"])
    for option in ("references", "limit", "batch"):
        check_least(option, options.get(option))
    acceptance = options.get("acceptance")
    if acceptance is not None and not 0 < acceptance < 1:
        raise OptionError(f"acceptance must be between 0 and 1, found {acceptance!r}.")
    severities = options.get("severities")
    for severity in (severities,) if isinstance(severities, int) else severities or ():
        check_severity(severity)
    if (suites := options.get("suites")) is None:
        return
    if not suites:
        raise OptionError(f"no suite is chosen. Choose some of {', '.join(EVALUATION_SUITES)}.")
    suites = imply_suites(suites, options)
    for suite in suites:
        check_option("a suite", suite, EVALUATION_SUITES)
    if "ood" in suites and not options.get("ood") and not options.get("synthetic", True):
        raise OptionError("--suite ood requires OOD images: --ood or --synthetic.")
    mapped = options.get("class_map") is not None
    if (mapped or "shift" in suites) and not options.get("shift"):
        needs = "--class-map" if mapped else "--suite shift"
        raise OptionError(f"{needs} requires --shift NAME=imagefolder:PATH.")
