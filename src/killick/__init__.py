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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from killick import attention as attention
    from killick import errors as errors
    from killick import metrics as metrics
    from killick import nets as nets
    from killick.core.anchored import Anchored as Anchored
    from killick.core.anchored import anchor as anchor
    from killick.core.anchored import pair as pair
    from killick.core.folding import fold as fold
    from killick.core.inference import Prediction as Prediction
    from killick.core.inference import predict as predict
    from killick.core.masking import Draw as Draw
    from killick.core.masking import ReferenceMasking as ReferenceMasking
    from killick.core.references import ReferencePool as ReferencePool
    from killick.core.settle import settle as settle
    from killick.core.standard import Standard as Standard
    from killick.core.standard import standard as standard
    from killick.core.synthetic_references import replace_references as replace_references
    from killick.core.transduction import residual_bank as residual_bank
    from killick.corruptions.corruption import corrupt as corrupt
    from killick.deploy.exporter import export as export
    from killick.deploy.publisher import publish as publish
    from killick.evaluation.evaluator import evaluate as evaluate
    from killick.evaluation.threshold import fit_threshold as fit_threshold
    from killick.experiments.experiment import compare as compare
    from killick.storage.loading import load as load
    from killick.storage.saving import save as save
    from killick.training.given_training import train as train

__version__ = "0.2.0"
# Where the names above are; a test compares the two lists.
_HOMES = {
    "Anchored": "killick.core.anchored",
    "Draw": "killick.core.masking",
    "Prediction": "killick.core.inference",
    "ReferenceMasking": "killick.core.masking",
    "ReferencePool": "killick.core.references",
    "Standard": "killick.core.standard",
    "anchor": "killick.core.anchored",
    "compare": "killick.experiments.experiment",
    "corrupt": "killick.corruptions.corruption",
    "evaluate": "killick.evaluation.evaluator",
    "export": "killick.deploy.exporter",
    "fit_threshold": "killick.evaluation.threshold",
    "fold": "killick.core.folding",
    "load": "killick.storage.loading",
    "pair": "killick.core.anchored",
    "predict": "killick.core.inference",
    "publish": "killick.deploy.publisher",
    "replace_references": "killick.core.synthetic_references",
    "residual_bank": "killick.core.transduction",
    "save": "killick.storage.saving",
    "settle": "killick.core.settle",
    "standard": "killick.core.standard",
    "train": "killick.training.given_training",
}
__all__ = sorted([*_HOMES, "attention", "errors", "metrics", "nets"])

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """A name that is asked for the first time; or a module, such as `killick.training`."""
        if name in _HOMES:
            globals()[name] = getattr(_importlib.import_module(_HOMES[name]), name)
            return globals()[name]
        module = f"killick.{name}"
        if not name.startswith("_"):
            try:
                return _importlib.import_module(module)
            except ModuleNotFoundError as problem:
                if problem.name != module:
                    raise
        raise AttributeError(f"module 'killick' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING"})
