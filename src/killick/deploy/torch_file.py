"""torch.export files (.pt2): the same graph for PyTorch, in Python or C++."""

import os
from pathlib import Path

import torch
from torch import Tensor

from killick.deploy.deployed_net import Deployed
from killick.errors import OptionError, find_reason
from killick.storage.export_metadata import KEY, About


class TorchFile:
    """A network as a program of torch.export, to be written once its threshold is known.

    Args:
        deployed: In any precision.
        image: One image, as it takes them.
    """

    def __init__(self, deployed: Deployed, image: Tensor) -> None:
        # Zeros: torch keeps the example in the file.
        example = torch.zeros(2, *image.shape, dtype=image.dtype)
        dynamic = ({0: torch.export.Dim("batch")},)
        try:
            with torch.no_grad():
                self._program = torch.export.export(
                    deployed, (example,), dynamic_shapes=dynamic, strict=False
                )
        except Exception as problem:  # the exporter has many ways to say that it cannot
            raise OptionError(
                f"cannot export {type(deployed.net.net).__name__}: torch says"
                f" {find_reason(problem)}."
            ) from problem
        for module in self._program.graph_module.modules():
            for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
                for noted in ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node"):
                    node.meta.pop(noted, None)

    def set_threshold(self, energy: float) -> None:
        """Up to which energy an image is in distribution."""
        self._program.state_dict["threshold"].fill_(energy)

    def write(self, about: About, path: Path) -> None:
        """One file, with what it says of itself inside, and nothing of where it was made."""
        extra = {f"{KEY}.json": about.to_json()}
        torch.export.save(self._program, os.fspath(path), extra_files=extra)
