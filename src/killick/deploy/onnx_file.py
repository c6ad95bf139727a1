"""ONNX files: the graph, what it says of itself, and not a word about where it was made."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from killick.deploy.deployed_net import Deployed
from killick.errors import OptionError, find_reason
from killick.storage.export_metadata import KEY, About
from killick.storage.exported_file import INPUT, require_onnx

if TYPE_CHECKING:
    import onnx

OPSET = 18
LARGEST = 2**31 - 2**20  # what protobuf can hold, and some


class OnnxFile:
    """A network as an ONNX graph, to be written once its threshold is known.

    Args:
        deployed: In float32.
        image: One image, as it takes them.
        precision: What the graph is to compute in; "bfloat16" keeps weights so, and no more.
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
            from killick.deploy.quantization import quantise

            assert batches is not None
            graph = quantise(graph, batches)
        if precision in ("float32", "bfloat16"):
            _lead_back_to_blocks(graph)
        if precision == "bfloat16":
            _keep_in_bfloat16(graph)
        _forget_origin(graph)
        self._graph = graph

    def set_threshold(self, energy: float) -> None:
        """Up to which energy an image is in distribution."""
        import onnx

        value = onnx.numpy_helper.from_array(np.array(energy, dtype=np.float32), "threshold")
        found = [each for each in self._graph.graph.initializer if each.name == "threshold"]
        assert len(found) == 1, "the graph has no place for a threshold"
        found[0].CopyFrom(value)

    def write(self, about: About, path: Path) -> None:
        """One file, with what it says of itself inside."""
        del self._graph.metadata_props[:]
        entry = self._graph.metadata_props.add()
        entry.key, entry.value = KEY, about.to_json()
        path.write_bytes(self._graph.SerializeToString())


def _make_graph(deployed: Deployed, image: Tensor, opset: int) -> "onnx.ModelProto":
    """The graph of `deployed`, for any number of images."""
    weight = sum(t.nbytes for t in deployed.state_dict().values())
    if weight > LARGEST:
        raise OptionError(
            f"expected a network of less than 2 GB, found {weight / 2**30:.1f} GB: one ONNX file"
            " cannot hold it. Take --precision float16, or --format torch."
        )
    example = image[None].repeat(2, *[1] * image.ndim)  # one alone would be taken for a constant
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
    except Exception as problem:  # the exporter has many ways to say that it cannot
        raise OptionError(
            f"cannot export {type(deployed.net.net).__name__} to ONNX: torch says"
            f" {find_reason(problem)}. Try --format torch, or another --opset."
        ) from problem
    assert program is not None
    graph: onnx.ModelProto = program.model_proto
    return graph


def _lead_back_to_blocks(graph: "onnx.ModelProto") -> None:
    """Put a maximum over single places, which changes nothing, behind the first layer and its ReLU.

    On CPUs onnxruntime keeps images in blocks of channels. The map is not in them, so its sum is
    taken outside, and so would be the sum of every residual block after it, up to the first that
    has none. What a maximum returns is in blocks again.
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
    """Keep weights as bfloat16, half the bytes; they become float32 again when a session starts.

    onnxruntime has no convolution in bfloat16 on most machines, so it computes in float32.
    """
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
    """Take out stack traces, which hold paths of the machine, and other notes of the exporter."""
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
    """Without the exporter's log lines and warnings about itself."""
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
