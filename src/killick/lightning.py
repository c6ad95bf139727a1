"""`AnchoredClassifier`, a `LightningModule`; its code is in `killick.integrations.lightning_module`."""

from killick.integrations.lightning_module import AnchoredClassifier as AnchoredClassifier
