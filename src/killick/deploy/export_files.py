"""ONNX and torch.export files with their metadata, and without traces of where they were made."""

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from killick.deploy.deployed_net import Deployed
from killick.errors import OptionError, find_reason
from killick.storage.export_metadata import KEY, ExportMetadata
from killick.storage.exported_file import INPUT, require_onnx

if TYPE_CHECKING:
    import onnx

OPSET = 18
LARGEST = 2**31 - 2**20  # what protobuf can hold, and some


class OnnxFile:
    """A network as an ONNX graph, written once its threshold is known.

    Args:
        deployed: In float32.
        image: One image, as it takes them.
        precision: What the graph is to compute in; "bfloat16" stores weights so, and computes in float32.
        batches: Calibration images, for "int8".
        opset: Version of ONNX's operators.
    """

    def __init__(
        self,
        deployed: Deployed,
        image: Tensor,
        precision: str,
        batches: Iterable[Tensor] | None,
        opset: int,
    ) -> None:
        require_onnx("onnx", "onnxscript", "onnxruntime")
        if precision == "float16":
            deployed = deployed.to_precision(torch.float16)
        graph = _make_graph(deployed, image, opset)
        if precision == "int8":
            from killick.deploy.quantization import quantize

            assert batches is not None
            graph = quantize(graph, batches)
        if precision in ("float32", "bfloat16"):
            _lead_back_to_blocks(graph)
        if precision == "bfloat16":
            _keep_in_bfloat16(graph)
        _forget_origin(graph)
        self._graph = graph

    def set_threshold(self, energy: float) -> None:
        """Set the energy up to which an image is in distribution."""
        import onnx

        value = onnx.numpy_helper.from_array(np.array(energy, dtype=np.float32), "threshold")
        found = [each for each in self._graph.graph.initializer if each.name == "threshold"]
        assert len(found) == 1, "the graph has no place for a threshold"
        found[0].CopyFrom(value)

    def write(self, about: ExportMetadata, path: Path) -> None:
        """Write one file, with its metadata inside."""
        del self._graph.metadata_props[:]
        entry = self._graph.metadata_props.add()
        entry.key, entry.value = KEY, about.to_json()
        path.write_bytes(self._graph.SerializeToString())


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
        except Exception as problem:  # the exporter raises many kinds
            raise OptionError(
                f"cannot export {type(deployed.net.net).__name__}: {find_reason(problem)}."
            ) from problem
        for module in self._program.graph_module.modules():
            for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
                for noted in ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node"):
                    node.meta.pop(noted, None)

    def set_threshold(self, energy: float) -> None:
        """Set the energy up to which an image is in distribution."""
        self._program.state_dict["threshold"].fill_(energy)

    def write(self, about: ExportMetadata, path: Path) -> None:
        """Write one file, with its metadata inside."""
        extra = {f"{KEY}.json": about.to_json()}
        torch.export.save(self._program, os.fspath(path), extra_files=extra)


def _make_graph(deployed: Deployed, image: Tensor, opset: int) -> "onnx.ModelProto":
    """The graph of `deployed`, for any number of images."""
    weight = sum(t.nbytes for t in deployed.state_dict().values())
    if weight > LARGEST:
        raise OptionError(
            f"the network has {weight / 2**30:.1f} GB, and an ONNX file holds less than 2. Use"
            " --precision float16, or --format torch."
        )
    example = image[None].repeat(
        2, *[1] * image.ndim
    )  # a batch of one would be taken for a constant
    try:
        with _silent(), torch.no_grad():
            program = torch.onnx.export(
                deployed,
                (example,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=[INPUT],
                output_names=list(deployed.outputs),
                opset_version=opset,
                verbose=False,
            )
    except Exception as problem:  # the exporter raises many kinds
        raise OptionError(
            f"cannot export {type(deployed.net.net).__name__} to ONNX: torch says"
            f" {find_reason(problem)}. Try --format torch, or another --opset."
        ) from problem
    assert program is not None
    graph: onnx.ModelProto = program.model_proto
    return graph


def _lead_back_to_blocks(graph: "onnx.ModelProto") -> None:
    """Put a 1 x 1 max-pooling, which changes nothing, behind the first layer and its ReLU.

    On CPUs onnxruntime keeps images in blocks of channels. The constant map is not in blocks, so
    its sum, and those of the residual blocks after it, would leave them. Pooling returns to them.
    """
    import onnx

    nodes = list(graph.graph.node)
    maps = {t.name for t in graph.graph.initializer if len(t.dims) == 4}
    readers: dict[str, list[Any]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    sums = [node for node in nodes if node.op_type == "Add" and maps & set(node.input)]
    for node in sums:
        relus = readers.get(node.output[0], [])
        if len(relus) != 1 or relus[0].op_type != "Relu":
            continue
        relu = relus[0]
        if any(reader.op_type == "MaxPool" for reader in readers.get(relu.output[0], [])):
            continue
        after, inside = relu.output[0], f"{relu.output[0]}.before"
        relu.output[0] = inside
        same = onnx.helper.make_node("MaxPool", [inside], [after], kernel_shape=[1, 1])
        nodes.insert(next(i for i, each in enumerate(nodes) if each is relu) + 1, same)
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)


def _keep_in_bfloat16(graph: "onnx.ModelProto") -> None:
    """Store weights as bfloat16; a session casts them to float32, as onnxruntime computes."""
    import onnx

    tensors = graph.graph.initializer
    kept: list[Any] = []
    casts: list[Any] = []
    for tensor in tensors:
        if tensor.data_type != onnx.TensorProto.FLOAT or tensor.name == "threshold":
            kept.append(tensor)
            continue
        values = torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy()).bfloat16()
        short = f"{tensor.name}.bfloat16"
        raw = values.view(torch.int16).numpy().tobytes()
        kept.append(
            onnx.helper.make_tensor(short, onnx.TensorProto.BFLOAT16, tensor.dims, raw, raw=True)
        )
        casts.append(
            onnx.helper.make_node("Cast", [short], [tensor.name], to=onnx.TensorProto.FLOAT)
        )
    nodes = [*casts, *graph.graph.node]
    del tensors[:], graph.graph.node[:]
    tensors.extend(kept)
    graph.graph.node.extend(nodes)


def _forget_origin(graph: "onnx.ModelProto") -> None:
    """Remove stack traces, which hold paths of the machine, and other notes of the exporter."""
    graph.producer_name, graph.producer_version = "killick", ""
    graph.doc_string = graph.graph.doc_string = ""
    graph.graph.name = "killick"
    everything = [
        *graph.graph.node,
        *graph.graph.input,
        *graph.graph.output,
        *graph.graph.value_info,
        *graph.graph.initializer,
        graph.graph,
    ]
    for function in graph.functions:
        everything += [function, *function.node]
    for part in everything:
        part.doc_string = ""
        if hasattr(part, "metadata_props"):
            del part.metadata_props[:]


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Silence the exporter."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
