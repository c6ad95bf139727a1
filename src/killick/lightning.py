"""`AnchoredClassifier` and `AnchoredMixin`; their code is in `killick.integrations.lightning_module`."""

from killick.integrations.lightning_module import AnchoredClassifier as AnchoredClassifier
from killick.integrations.lightning_module import AnchoredMixin as AnchoredMixin
