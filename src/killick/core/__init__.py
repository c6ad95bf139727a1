"""The method: anchoring, references, masking, inference, folding.

In: networks and tensors. Out: anchored networks, losses, predictions. Imports torch and `errors`.
"""
