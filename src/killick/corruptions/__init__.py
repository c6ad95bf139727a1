"""Corruptions: the 19 of ImageNet-C and both lists of C-bar, batched, on the images' device.

Each is one function in its file and one row in `severities.py`; `making.corrupt` calls them.
"""
