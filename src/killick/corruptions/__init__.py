"""Corruptions of images, batched, on the images' device: ImageNet-C, C-bar and yours.

In: uint8 images, a name, a severity, a generator. Out: uint8 images of the same shape. Imports only
`errors` and `registry`. To add a corruption, decorate its function with `@corruption(...)` in a file
of this folder, or point an entry point `killick.corruptions` of another package at it. A suite
(`suites.py`) is a list of names, so that a new corruption changes no published mean.
"""
