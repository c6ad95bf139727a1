"""ONNX and torch.export files with their metadata, and without traces of where they were made."""

import contextlib
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from killick.deploy.deployed_net import Deployed
from killick.deploy.parity import BATCH
from killick.errors import OptionError, find_reason
from killick.storage.export_metadata import KEY, ExportMetadata
from killick.storage.exported_file import INPUT, require_onnx

OPSET = 18
# The products, where the time goes; sums, softmax and normalization stay in float32.
QUANTIZED = ["Conv", "MatMul", "Gemm"]


class OnnxFile:
    """A network as an ONNX graph, in the precision of its metadata.

    bfloat16 stores weights so, and computes in float32; int8 is calibrated on images.
    """

    def __init__(
        self, deployed: Deployed, image: Tensor, precision: str, images: Tensor | None, opset: int
    ) -> None:
        require_onnx("onnx", "onnxscript", "onnxruntime")
        if precision == "float16":
            deployed = deployed.to_precision(torch.float16)
        with _explained(deployed), _silent(), torch.no_grad():
            program = torch.onnx.export(
                deployed,
                _example(image),
                dynamo=True,
                dynamic_shapes=_DYNAMIC,
                input_names=[INPUT],
                output_names=list(deployed.outputs),
                opset_version=opset,
                verbose=False,
            )
        assert program is not None
        graph = program.model_proto
        if precision == "int8":
            assert images is not None
            graph = _quantize(graph, images)
        if precision in ("float32", "bfloat16"):
            _lead_back_to_blocks(graph)
        if precision == "bfloat16":
            _keep_in_bfloat16(graph)
        _forget_origin(graph)
        self._graph = graph

    def write(self, about: ExportMetadata, path: Path) -> None:
        """Write one file, with its metadata inside, and their threshold in the network."""
        from onnx import numpy_helper

        if about.threshold is not None:
            energy = np.array(about.threshold.energy, dtype=np.float32)
            (kept,) = [each for each in self._graph.graph.initializer if each.name == "threshold"]
            kept.CopyFrom(numpy_helper.from_array(energy, "threshold"))
        del self._graph.metadata_props[:]
        entry = self._graph.metadata_props.add()
        entry.key, entry.value = KEY, about.to_json()
        path.write_bytes(self._graph.SerializeToString())


class TorchFile:
    """A network as a program of torch.export."""

    def __init__(self, deployed: Deployed, image: Tensor) -> None:
        with _explained(deployed), torch.no_grad():
            self._program = torch.export.export(
                deployed, _example(image), dynamic_shapes=_DYNAMIC, strict=False
            )
        for module in self._program.graph_module.modules():
            for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
                for noted in ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node"):
                    node.meta.pop(noted, None)

    def write(self, about: ExportMetadata, path: Path) -> None:
        """Write one file, with its metadata inside, and their threshold in the network."""
        if about.threshold is not None:
            self._program.state_dict["threshold"].fill_(about.threshold.energy)
        extra = {f"{KEY}.json": about.to_json()}
        torch.export.save(self._program, os.fspath(path), extra_files=extra)


def make_file(
    deployed: Deployed, about: ExportMetadata, images: Tensor | None, opset: int
) -> OnnxFile | TorchFile:
    """The network in the format and precision of its metadata; `images` calibrate int8."""
    image = torch.zeros(about.image_shape, dtype=getattr(torch, about.takes))
    if about.file_format == "onnx":
        return OnnxFile(deployed, image, about.precision, images, opset)
    return TorchFile(deployed.to_precision(getattr(torch, about.precision)), image)


_DYNAMIC = ({0: torch.export.Dim("batch")},)


def _example(image: Tensor) -> tuple[Tensor]:
    """A batch of two, since one would be taken for a constant."""
    return (torch.stack([image, image]),)


@contextlib.contextmanager
def _explained(deployed: Deployed) -> Iterator[None]:
    try:
        yield
    except Exception as problem:  # the exporter raises many kinds
        raise OptionError(
            f"cannot export {type(deployed.net.net).__name__}: {find_reason(problem)}. Try another"
            " --format or --opset."
        ) from problem


def _lead_back_to_blocks(graph: Any) -> None:
    """Put a 1 x 1 max-pooling, which changes nothing, behind the first layer and its ReLU.

    On CPUs onnxruntime keeps images in blocks of channels. The constant map is not in blocks, so
    its sum, and those of the residual blocks after it, would leave them. Pooling returns to them.
    """
    import onnx

    nodes = list(graph.graph.node)
    maps = {t.name for t in graph.graph.initializer if len(t.dims) == 4}

    def readers(node: Any) -> list[Any]:
        return [each for each in nodes if node.output[0] in each.input]

    for added in [node for node in nodes if node.op_type == "Add" and maps & set(node.input)]:
        behind = readers(added)
        if [node.op_type for node in behind] != ["Relu"]:
            continue
        relu = behind[0]
        if any(reader.op_type == "MaxPool" for reader in readers(relu)):
            continue
        after, inside = relu.output[0], f"{relu.output[0]}.before"
        relu.output[0] = inside
        same = onnx.helper.make_node("MaxPool", [inside], [after], kernel_shape=[1, 1])
        nodes.insert(nodes.index(relu) + 1, same)
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)


def _quantize(graph: Any, images: Tensor) -> Any:
    """The graph with 8-bit products, and ranges of activations from calibration images.

    Weights have 7 bits for each output channel on its own: with 8, older processors (AVX2 without
    VNNI) overflow in silence.
    """
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    batches = iter(images.split(BATCH))

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Any] | None:
            batch = next(batches, None)
            return None if batch is None else {INPUT: batch.contiguous().numpy()}

    # The quantizer leaves files where it runs.
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place), _silent():
        before, ready, after = (str(Path(place) / f"{i}.onnx") for i in range(3))
        onnx.save(graph, before)
        quant_pre_process(before, ready, skip_symbolic_shape=True)
        quantization.quantize_static(
            ready,
            after,
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            op_types_to_quantize=QUANTIZED,
            per_channel=True,
            reduce_range=True,
        )
        return onnx.load(after)


def _keep_in_bfloat16(graph: Any) -> None:
    """Store weights as bfloat16; a session casts them to float32, as onnxruntime computes."""
    from onnx import TensorProto, helper, numpy_helper

    tensors, nodes = graph.graph.initializer, graph.graph.node
    kept: list[Any] = []
    casts: list[Any] = []
    for tensor in tensors:
        if tensor.data_type != TensorProto.FLOAT or tensor.name == "threshold":
            kept.append(tensor)
            continue
        values = torch.from_numpy(numpy_helper.to_array(tensor).copy()).bfloat16()
        raw, short = values.view(torch.int16).numpy().tobytes(), f"{tensor.name}.bfloat16"
        kept.append(helper.make_tensor(short, TensorProto.BFLOAT16, tensor.dims, raw, raw=True))
        casts.append(helper.make_node("Cast", [short], [tensor.name], to=TensorProto.FLOAT))
    casts += nodes
    del tensors[:], nodes[:]
    tensors.extend(kept)
    nodes.extend(casts)


def _forget_origin(graph: Any) -> None:
    """Remove stack traces, which hold paths of the machine, and other notes of the exporter."""
    graph.producer_name, graph.producer_version = "killick", ""
    graph.doc_string, graph.graph.name = "", "killick"
    inner = graph.graph
    parts = [inner, *inner.node, *inner.input, *inner.output, *inner.value_info]
    parts += [*inner.initializer, *graph.functions]
    parts += [node for function in graph.functions for node in function.node]
    for part in parts:
        part.doc_string = ""
        del part.metadata_props[:]


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Silence exporters: their log lines, warnings and prints."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
