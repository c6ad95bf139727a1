"""Killick: anchored vision models, trained, evaluated and deployed.

An anchored network sees a pair, `[reference, x - reference]`, instead of an image `x`. The everyday
use is three lines in a training loop of one's own:

    model = killick.anchor(net)                                        # same predictions as before
    masking = killick.ReferenceMasking(alpha=0.25, target="label")
    loss = masking.loss(model, x, labels)                            # in place of cross_entropy

Each name is imported when it is first asked for: torch takes seconds, which the command line's help
need not wait for.
"""

import importlib as _importlib
import sys as _sys
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from killick import errors as errors
    from killick import metrics as metrics
    from killick import nets as nets
    from killick.anchored import Anchored as Anchored
    from killick.anchored import anchor as anchor
    from killick.anchored import pair as pair
    from killick.corruptions.making import corrupt as corrupt
    from killick.evaluation.running import evaluate as evaluate
    from killick.evaluation.thresholds import fit_threshold as fit_threshold
    from killick.export.exporting import export as export
    from killick.folding import fold as fold
    from killick.masking import Draw as Draw
    from killick.masking import ReferenceMasking as ReferenceMasking
    from killick.predict import Prediction as Prediction
    from killick.predict import predict as predict
    from killick.private_references import replace_references as replace_references
    from killick.publishing.folder import publish as publish
    from killick.references import ReferencePool as ReferencePool
    from killick.settling import settle as settle
    from killick.standard import Standard as Standard
    from killick.standard import standard as standard
    from killick.storage import load as load
    from killick.storage import save as save
    from killick.transduction import residual_bank as residual_bank

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
    "Anchored": "killick.anchored",
    "Draw": "killick.masking",
    "Prediction": "killick.predict",
    "ReferenceMasking": "killick.masking",
    "ReferencePool": "killick.references",
    "Standard": "killick.standard",
    "anchor": "killick.anchored",
    "corrupt": "killick.corruptions.making",
    "evaluate": "killick.evaluation.running",
    "export": "killick.export.exporting",
    "fit_threshold": "killick.evaluation.thresholds",
    "fold": "killick.folding",
    "load": "killick.storage",
    "pair": "killick.anchored",
    "predict": "killick.predict",
    "publish": "killick.publishing.folder",
    "replace_references": "killick.private_references",
    "residual_bank": "killick.transduction",
    "save": "killick.storage",
    "settle": "killick.settling",
    "standard": "killick.standard",
}


class _LazyPackage(_ModuleType):
    """A package whose names are imported when they are asked for, once."""

    def __getattr__(self, name: str) -> object:
        if name in _HOMES:
            found = getattr(_importlib.import_module(_HOMES[name]), name)
            setattr(self, name, found)
            return found
        module = f"{self.__name__}.{name}"
        # Modules too: `killick.training.train` works after `import killick`.
        if not name.startswith("_"):
            try:
                return _importlib.import_module(module)
            except ModuleNotFoundError as problem:
                if problem.name != module:
                    raise
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        # Python puts a submodule here when it is imported, wherever that is. `killick.predict` and
        # `killick.standard` are modules and functions: it is the function that people mean.
        if name in _HOMES and isinstance(value, _ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__} - {"TYPE_CHECKING"})


_sys.modules[__name__].__class__ = _LazyPackage
