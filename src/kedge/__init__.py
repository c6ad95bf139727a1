"""Kedge: anchored vision models, trained, evaluated and deployed.

An anchored network sees a pair, `[reference, x - reference]`, instead of an image `x`. The everyday
use is three lines in a training loop of one's own:

    model = kedge.anchor(net)                                        # same predictions as before
    masking = kedge.ReferenceMasking(alpha=0.25, target="label")
    loss = masking.loss(model, x, labels)                            # in place of cross_entropy
"""

from typing import TYPE_CHECKING, Any

from kedge import errors as errors
from kedge import metrics as metrics
from kedge import nets as nets
from kedge.anchored import Anchored as Anchored
from kedge.anchored import anchor as anchor
from kedge.anchored import pair as pair
from kedge.corruptions.making import corrupt as corrupt
from kedge.evaluation.thresholds import fit_threshold as fit_threshold
from kedge.folding import fold as fold
from kedge.masking import Draw as Draw
from kedge.masking import ReferenceMasking as ReferenceMasking
from kedge.predict import Prediction as Prediction
from kedge.predict import predict as predict
from kedge.references import ReferencePool as ReferencePool
from kedge.settling import settle as settle
from kedge.standard import Standard as Standard
from kedge.standard import standard as standard
from kedge.storage import load as load
from kedge.storage import save as save
from kedge.transduction import residual_bank as residual_bank

if TYPE_CHECKING:
    from kedge.evaluation.running import evaluate as evaluate

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
    "fit_threshold",
    "fold",
    "load",
    "metrics",
    "nets",
    "pair",
    "predict",
    "residual_bank",
    "save",
    "settle",
    "standard",
]


def __getattr__(name: str) -> Any:
    """`evaluate` when it is asked for: it needs torchvision, which takes as long as torch does."""
    if name == "evaluate":
        from kedge.evaluation.running import evaluate

        globals()[name] = evaluate
        return evaluate
    raise AttributeError(f"module 'kedge' has no attribute {name!r}")
