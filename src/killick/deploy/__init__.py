"""Deploying trained models: export, batch prediction, publishing.

In: models and image files. Out: ONNX and torch.export files, prediction records, model folders with
a card. Imports everything up to `evaluation`.
"""
