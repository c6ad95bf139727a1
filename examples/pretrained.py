"""Anchors a pretrained network exactly: `python examples/pretrained.py timm:resnet18`."""

import sys

import torch

import killick

name = sys.argv[1] if len(sys.argv) > 1 else "timm:resnet18"
net = killick.nets.load_pretrained(name)
view = killick.nets.preprocessing_of(net)
assert view is not None
images = torch.randint(256, (4, 3, view.size, view.size), dtype=torch.uint8)
model = killick.anchor(
    net, normalize=(view.mean, view.std), example=torch.rand(2, *images.shape[1:])
)
model.set_references(images[:1])
plain = killick.standard(net, (view.mean, view.std), image_shape=images.shape[1:])
difference = (model.eval()(images) - plain(images)).abs().max().item()
print(f"{name}: images of {view.size} px; anchored, its logits differ by {difference:.1e}")
