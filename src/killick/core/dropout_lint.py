"""Dropout before a BatchNorm: the variance that BatchNorm sees differs between training and test.

Li et al. 2019: put dropout after the last BatchNorm.
"""

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from killick.core.anchored import evaluating
from killick.core.image_model import ImageModel
from killick.core.inspection import run
from killick.core.residual_blocks import example_inputs


def find_early_dropout(model: ImageModel) -> list[str]:
    """The names of dropout layers, of a rate above 0, that run before some BatchNorm."""
    layers = {
        name: module
        for name, module in model.net.named_modules()
        if isinstance(module, _BatchNorm) or (isinstance(module, _DropoutNd) and module.p > 0)
    }
    kinds = {isinstance(module, _BatchNorm) for module in layers.values()}
    if len(kinds) < 2:
        return []
    order: list[str] = []

    def record(name: str, *_: Any) -> None:
        order.append(name)

    with evaluating(model), torch.no_grad(), ExitStack() as hooks:
        for name, module in layers.items():
            hooks.enter_context(module.register_forward_hook(partial(record, name)))
        run(model.net, example_inputs(model))
    norms = [place for place, name in enumerate(order) if isinstance(layers[name], _BatchNorm)]
    last = max(norms, default=-1)
    found = [name for name in order[: last + 1] if not isinstance(layers[name], _BatchNorm)]
    return list(dict.fromkeys(found))
