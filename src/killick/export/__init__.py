"""Export: a model as a file that runs without Killick, checked against the model it came from."""

from killick.export.exporting import export as export

__all__ = ["export"]
