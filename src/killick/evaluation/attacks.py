"""Adversarial attacks: FGSM (Goodfellow et al. 2015) and PGD (Madry et al. 2018), L-inf, untargeted.

Images are floats from 0 to 255 here, not rounded: integers and whole radii are exact, so the bound
holds exactly. A radius of 8 is the usual eps of 8/255.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from killick.core.anchored import Anchored, evaluating, pair
from killick.core.folding import Folded
from killick.core.image_model import image_model_in
from killick.core.inspection import logits_of
from killick.errors import one_line
from killick.evaluation.classifier import Classifier
from killick.evaluation.mc_dropout import mean_logits

RADII = (1, 2, 8)  # gray levels of 255
DRAWS = 10  # of a network with dropout on, whose mean is attacked

Network = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Attack:
    """Steps along the sign of the gradient, each brought back to the ball around the image."""

    steps: int
    size: float  # of a step, in radii of the ball
    random_start: bool  # uniform in the ball; otherwise the image

    def perturb(
        self,
        network: Network,
        images: Tensor,
        labels: Tensor,
        radius: float,
        uniform: Tensor | None = None,
    ) -> Tensor:
        """Images that differ from `images` by at most `radius`, to raise the loss of the label.

        Args:
            network: Maps images to logits `(n, classes)`, with gradients.
            images: Floats from 0 to 255, `(n, channels, height, width)`.
            labels: The true classes, `(n,)`.
            radius: The most that a value changes.
            uniform: For a random start: numbers from 0 to 1 like `images`.
        """
        low, high = (images - radius).clamp_(min=0), (images + radius).clamp_(max=255)
        found = images
        if self.random_start:
            assert uniform is not None
            found = (images + radius * (2 * uniform - 1)).clamp(low, high)
        for _ in range(self.steps):
            found = found + self.size * radius * _ascent(network, found, labels)
            found = found.clamp(low, high)
        return found


ATTACKS = {"fgsm": Attack(1, 1.0, False), "pgd20": Attack(20, 2.5 / 20, True)}


def _ascent(network: Network, images: Tensor, labels: Tensor) -> Tensor:
    """The sign of the gradient of the cross-entropy of the label.

    The cross-entropy is `log(1 + exp(m))`, with m by how much the other classes are ahead. Its
    gradient has the sign of m's, which does not vanish where the network is sure.
    """
    with torch.enable_grad():
        images = images.detach().requires_grad_()
        logits = network(images)
        own = labels[:, None]
        others = logits.scatter(1, own, -torch.inf).logsumexp(1)
        (gradient,) = torch.autograd.grad((others - logits.gather(1, own)[:, 0]).sum(), images)
    return gradient.sign()


def first_logits(classifier: Classifier, images: Tensor) -> Tensor:
    """`(n, classes)`: the logits of images from 0 to 255, floats too, for the first reference.

    Unlike those of the classifier they have gradients. Those of a folded model are the same.
    """
    inner = image_model_in(classifier.model) or classifier.model
    images = images.contiguous(memory_format=torch.channels_last)
    if classifier.normalizer is not None:
        images = classifier.normalizer(images)
    if isinstance(inner, Folded):
        return inner.members(images).mean(0).float()
    if isinstance(inner, Anchored):
        first = inner.prepare(inner.stored_references(1, like=images))
        prepared = inner.prepare(images)
        images = pair(prepared, first.expand(prepared.shape))
    elif inner.normalize is not None:
        images = inner.normalize(images)  # type: ignore[operator]
    return logits_of(inner.net(images)).float()  # type: ignore[operator]


def attacked_logits(classifier: Classifier, images: Tensor) -> Tensor:
    """`first_logits`, of a mean over draws or views that of each; draws are ten."""
    found = classifier.passes(images, partial(first_logits, classifier), DRAWS)
    return found[0] if len(found) == 1 else mean_logits(torch.stack(found))[0]


def why_not_attacked(classifier: Classifier) -> str:
    """Why a classifier cannot be attacked; empty if it can."""
    if classifier.exported is not None:
        return "an exported file has none"
    if classifier.candidates:
        return "transduction has none"
    size = classifier.view.size
    image = torch.zeros(1, 3, size, size, device=classifier.device).requires_grad_()
    with evaluating(classifier.model), torch.enable_grad():
        try:
            logits = first_logits(classifier, image)
        except Exception as problem:  # whatever a function raises, such as one that uses NumPy
            return f"{classifier.name} has none ({one_line(problem)})"
    return "" if logits.requires_grad else f"the logits of {classifier.name} have none"
