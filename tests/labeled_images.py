"""Models and image files, shared by the tests of batch prediction."""

from pathlib import Path

import numpy as np
import torch
from conftest import stir
from PIL import Image

import killick
from killick.data.decoding import decode

NAMES = ("cat", "dog", "fox", "owl", "yak")
NORMALIZE = ((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
SIDE = 12


def make_net() -> torch.nn.Module:
    """A network that does not say the same of everything."""
    torch.manual_seed(0)
    net = stir(killick.nets.create("killick:resnet_small", num_classes=len(NAMES)).eval())
    net.fc.weight.data *= 8
    return net


def make_anchored(stored: int = 4) -> killick.Anchored:
    """Its answers depend on the reference."""
    generator = torch.Generator().manual_seed(1)
    model = killick.anchor(make_net(), normalize=NORMALIZE, example=torch.zeros(2, 3, SIDE, SIDE))
    references = torch.randint(0, 256, (stored, 3, SIDE, SIDE), generator=generator)
    model = stir(model).set_references(references.to(torch.uint8)).eval()
    model.class_names = NAMES
    return model


def make_standard() -> killick.Standard:
    model = killick.standard(make_net(), NORMALIZE, image_shape=(3, SIDE, SIDE)).eval()
    model.class_names = NAMES
    return model


def make_files(folder: Path, count: int = 11) -> list[str]:
    """Images of several sizes and kinds."""
    draw = np.random.default_rng(0)
    paths = []
    for number in range(count):
        high, wide = draw.integers(5, 40, 2)
        colour, noise = draw.integers(0, 156, 3), draw.integers(0, 100, (high, wide, 3))
        pixels = (colour + noise).astype(np.uint8)
        path = folder / f"{number:02}.{('png', 'bmp', 'webp')[number % 3]}"
        Image.fromarray(pixels).save(path, **({"lossless": True} if number % 3 == 2 else {}))
        paths.append(str(path))
    return paths


def expected(model, path: str, k: int | None) -> dict:
    """A record by hand, in float64, from the logits for each reference of one image alone."""
    image = killick.data.preprocessing.view_for(model)(decode(path, path))[None]
    said = killick.predict(model, image, "marginal", k, members=True) if k else None
    logits = killick.predict(model, image).logits[None] if said is None else said.members
    members = logits[:, 0].double().numpy()
    mean = members.mean(0)
    probs = np.exp(mean) / np.exp(mean).sum()
    each = np.exp(members) / np.exp(members).sum(1, keepdims=True)
    index = int(probs.argmax())
    entropy = -sum(float(p) * np.log(p) for p in probs)
    found = {
        "image": path,
        "label": NAMES[index],
        "index": index,
        "confidence": probs[index],
        "uncertainty": entropy / np.log(len(NAMES)),
        "energy": -np.log(np.exp(mean).sum()),
        "probabilities": probs.tolist(),
    }
    if len(members) > 1:
        spread = ((each[:, index] - each[:, index].mean()) ** 2).sum() / (len(members) - 1)
        found["std"] = spread**0.5
    return found
