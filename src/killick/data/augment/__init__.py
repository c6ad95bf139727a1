"""Augmentation policies for whole batches, on their device.

Each image has its own operation and magnitude, as tensors, and nothing waits for the device, so all
of it can be compiled and captured in a CUDA graph. Results are torchvision's for uint8 images.
"""
