"""An anchored model saved and loaded in the habits of Hugging Face models."""

import timm
import torch

import killick

model = killick.anchor(timm.create_model("resnet10t", num_classes=4))
model.set_references(torch.randn(5, 3, 32, 32))  # some training images: they are saved too
model.eval().save_pretrained("my-model")
again = killick.Anchored.from_pretrained("my-model")  # or "owner/name"; killick.load is the same
x = torch.randn(2, 3, 32, 32)
print(torch.equal(again(x), model(x)))
# model.push_to_hub("owner/name", license="apache-2.0")
