"""`AnchoredClassifier`, a `LightningModule`; its code is in `killick.integrations.lightning`."""

from killick.integrations.lightning import AnchoredClassifier as AnchoredClassifier
