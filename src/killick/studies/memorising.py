"""What a network says of the pictures it was trained on: apart for true and for flipped labels.

A network that has learned its training set by heart gives a flipped picture its wrong label; one
that has learned the classes gives it the true one.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from killick.core.anchored import evaluating
from killick.evaluation.image_blocks import Pictures
from killick.results.measurements import Measured, Record
from killick.runtime.processes import Processes
from killick.runtime.progress import Display, DisplayFactory
from killick.studies.trained import Trained, open_trained
from killick.training.training_data import sets_of

RIGHT = "training top1, true labels"
BY_HEART = "flipped pictures given their wrong label"
SEEN_THROUGH = "flipped pictures given their true label"
FLIPPED = "flipped share"


def measure(
    folder: Path,
    options: Mapping[str, Any],
    kept: Measured,
    *,
    device: torch.device,
    show: DisplayFactory,
) -> None:
    """Show a network its training pictures again, without augmentation.

    Args:
        folder: Of a trained cell.
        options: None are read.
        kept: What is there already, and where the rest goes.
        device: Where to work.
        show: Who is told.
    """
    if kept.find(metric=RIGHT) is not None:  # it comes last
        return
    trained = open_trained(folder, device)
    given = trained.parts.train.labels
    with show("looking at its training pictures", len(given), 0, "picture") as display:
        said = answer_training(trained, display)
    recipe = trained.recipe
    clean = replace(recipe, data=replace(recipe.data, label_noise=0.0))
    kept.add(*compare_labels(said, given, sets_of(clean).train.labels))


def answer_training(trained: Trained, display: Display) -> Tensor:
    """The class that a network gives each of its training pictures, from its first reference."""
    data, processes = trained.recipe.data, Processes(0, 1, trained.device)
    pictures = Pictures(trained.parts.train, trained.view, data.size, processes, data.workers)
    said: list[Tensor] = []
    seen = 0
    with evaluating(trained.model), torch.no_grad():
        for block in pictures:
            images = block.images.contiguous(memory_format=torch.channels_last)
            said.append(trained.model(images).argmax(1))
            seen += len(images)
            display.advance(seen)
    return torch.cat(said).cpu()


def compare_labels(said: Tensor, given: Tensor, true: Tensor) -> list[Record]:
    """Shares of the pictures, by whether their label was flipped; what there is none of is absent.

    Args:
        said: The class that each picture was given by the network.
        given: The label that it was trained with.
        true: The label that it has.

    Example:
        >>> said, given, true = torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1], [0, 1, 0, 0]])
        >>> {each["metric"]: each["value"] for each in compare_labels(said, given, true)}[RIGHT]
        1.0
    """
    flipped = given != true
    shares = {
        FLIPPED: flipped,
        BY_HEART: (said == given)[flipped],
        SEEN_THROUGH: (said == true)[flipped],
        RIGHT: (said == true)[~flipped],
    }
    return [
        {"metric": metric, "value": float(share.double().mean()), "count": len(share)}
        for metric, share in shares.items()
        if len(share)
    ]
