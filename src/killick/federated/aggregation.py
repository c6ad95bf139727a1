"""What the server does with uploads: refuses bad ones, and averages the others."""

from collections.abc import Mapping

import torch
from torch import Tensor

from killick.federated.method import State


def find_fault(upload: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> str | None:
    """What is wrong with an upload: other names or shapes than `like`, or numbers that are not finite."""
    if upload.keys() != like.keys():
        name = min(upload.keys() ^ like.keys())
        return f"other tensors ({name} is {'missing' if name in like else 'unknown'})"
    for name, value in upload.items():
        if value.shape != like[name].shape or value.dtype != like[name].dtype:
            return f"another shape ({name} is {tuple(value.shape)}, not {tuple(like[name].shape)})"
        if not bool(value.isfinite().all()):
            return f"values that are not finite ({name})"
    return None


def weighted_mean(uploads: Mapping[int, State], samples: Mapping[int, int]) -> State:
    """The mean of weights and buffers by the clients' numbers of training images.

    Added up in float64 in the order of the clients' numbers, so that it does not depend on the
    order of arrival. Whole numbers, such as BatchNorm's count of batches, are rounded.
    """
    clients = sorted(uploads)
    total = sum(samples[client] for client in clients)
    mean = {}
    for name, first in uploads[clients[0]].items():
        added = torch.zeros(first.shape, dtype=torch.float64)
        for client in clients:
            added += samples[client] / total * uploads[client][name].double()
        mean[name] = (added if first.is_floating_point() else added.round()).to(first.dtype)
    return mean
