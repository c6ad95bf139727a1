"""Batch prediction from Python, under the path that the documentation teaches."""

from killick.deploy.batch_prediction import label as label
from killick.deploy.prediction_records import Record as Record
