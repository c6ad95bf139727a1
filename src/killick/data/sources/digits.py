"""Scikit-learn's 1,797 handwritten digits, enlarged to 32 px."""

import torch
from torch.nn import functional

from killick.data.image_set import ImageSet, Sets
from killick.data.sources import DATA_SOURCES, DataSource, LoadOptions
from killick.data.splits import stratified

TEST_COUNT = 360
SPLIT_SEED = 0
SIZE = 32


def load_digits(argument: str, options: LoadOptions) -> Sets:
    """The digits, from 8 px in gray to 32 px in RGB; 360 of them to test on."""
    from sklearn import datasets

    digits = datasets.load_digits()
    gray = torch.from_numpy(digits.images).float().unsqueeze(1)  # 0 to 16
    gray = functional.interpolate(gray, (SIZE, SIZE), mode="bilinear", align_corners=False)
    # Scaled only now: 64ths, which floats hold exactly, are rounded alike on every machine.
    images = (gray * 255 / 16).round().to(torch.uint8).repeat(1, 3, 1, 1)
    names = [str(name) for name in digits.target_names]
    whole = ImageSet.of("digits", images, torch.from_numpy(digits.target), names)
    kept, cut = stratified(whole.labels, TEST_COUNT, SPLIT_SEED)
    return Sets(whole.part(kept), whole.part(cut))


_HELP = "handwritten digits of scikit-learn, 32 px; no download"
DATA_SOURCES.register("digits", DataSource("digits", load_digits, _HELP))
