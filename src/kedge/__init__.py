"""Kedge: anchored vision models, trained, evaluated and deployed.

An anchored network sees a pair, `[reference, x - reference]`, instead of an image `x`. The everyday
use is three lines in a training loop of one's own:

    model = kedge.anchor(net)                                        # same predictions as before
    masking = kedge.ReferenceMasking(alpha=0.25, target="label")
    loss = masking.loss(model, x, labels)                            # in place of cross_entropy

Each name is imported when it is first asked for: torch takes seconds, which the command line's help
need not wait for.
"""

import importlib as _importlib
import sys as _sys
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kedge import errors as errors
    from kedge import metrics as metrics
    from kedge import nets as nets
    from kedge.anchored import Anchored as Anchored
    from kedge.anchored import anchor as anchor
    from kedge.anchored import pair as pair
    from kedge.corruptions.making import corrupt as corrupt
    from kedge.evaluation.running import evaluate as evaluate
    from kedge.evaluation.thresholds import fit_threshold as fit_threshold
    from kedge.export.exporting import export as export
    from kedge.folding import fold as fold
    from kedge.masking import Draw as Draw
    from kedge.masking import ReferenceMasking as ReferenceMasking
    from kedge.predict import Prediction as Prediction
    from kedge.predict import predict as predict
    from kedge.private_references import replace_references as replace_references
    from kedge.publishing.folder import publish as publish
    from kedge.references import ReferencePool as ReferencePool
    from kedge.settling import settle as settle
    from kedge.standard import Standard as Standard
    from kedge.standard import standard as standard
    from kedge.storage import load as load
    from kedge.storage import save as save
    from kedge.transduction import residual_bank as residual_bank

__version__ = "0.1.0"
__all__ = [
    "Anchored",
    "Draw",
    "Prediction",
    "ReferenceMasking",
    "ReferencePool",
    "Standard",
    "anchor",
    "corrupt",
    "errors",
    "evaluate",
    "export",
    "fit_threshold",
    "fold",
    "load",
    "metrics",
    "nets",
    "pair",
    "predict",
    "publish",
    "replace_references",
    "residual_bank",
    "save",
    "settle",
    "standard",
]

# Where each of those is that is not a module itself; the imports above say the same to type
# checkers, and a test compares the two.
_HOMES = {
    "Anchored": "kedge.anchored",
    "Draw": "kedge.masking",
    "Prediction": "kedge.predict",
    "ReferenceMasking": "kedge.masking",
    "ReferencePool": "kedge.references",
    "Standard": "kedge.standard",
    "anchor": "kedge.anchored",
    "corrupt": "kedge.corruptions.making",
    "evaluate": "kedge.evaluation.running",
    "export": "kedge.export.exporting",
    "fit_threshold": "kedge.evaluation.thresholds",
    "fold": "kedge.folding",
    "load": "kedge.storage",
    "pair": "kedge.anchored",
    "predict": "kedge.predict",
    "publish": "kedge.publishing.folder",
    "replace_references": "kedge.private_references",
    "residual_bank": "kedge.transduction",
    "save": "kedge.storage",
    "settle": "kedge.settling",
    "standard": "kedge.standard",
}


class _LazyPackage(_ModuleType):
    """A package whose names are imported when they are asked for, once."""

    def __getattr__(self, name: str) -> object:
        if name in _HOMES:
            found = getattr(_importlib.import_module(_HOMES[name]), name)
            setattr(self, name, found)
            return found
        module = f"{self.__name__}.{name}"
        # Modules too: `kedge.training.train` works after `import kedge`.
        if not name.startswith("_"):
            try:
                return _importlib.import_module(module)
            except ModuleNotFoundError as problem:
                if problem.name != module:
                    raise
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        # Python puts a submodule here when it is imported, wherever that is. `kedge.predict` and
        # `kedge.standard` are modules and functions: it is the function that people mean.
        if name in _HOMES and isinstance(value, _ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__} - {"TYPE_CHECKING"})


_sys.modules[__name__].__class__ = _LazyPackage
