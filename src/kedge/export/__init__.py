"""Export: a model as a file that runs without Kedge, checked against the model it came from."""

from kedge.export.exporting import export as export

__all__ = ["export"]
