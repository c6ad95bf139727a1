"""int8: onnxruntime's static quantization, with ranges from calibration images."""

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from killick.storage.exported_file import INPUT

if TYPE_CHECKING:
    import onnx

# The products, where the time goes; sums, softmax and normalization stay in float32.
QUANTIZED = ["Conv", "MatMul", "Gemm"]


def quantize(graph: "onnx.ModelProto", batches: Iterable[Tensor]) -> "onnx.ModelProto":
    """The graph with 8-bit products.

    Weights have 7 bits for each output channel on its own: with 8, older processors (AVX2 without
    VNNI) overflow in silence.

    Args:
        graph: In float32.
        batches: Calibration images, as the graph takes them; ranges of activations are theirs.
    """
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._batches = iter(batches)

        def get_next(self) -> dict[str, Any] | None:
            images = next(self._batches, None)
            return None if images is None else {INPUT: np.ascontiguousarray(images.numpy())}

    with tempfile.TemporaryDirectory() as place, _silent_in(place):
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


@contextlib.contextmanager
def _silent_in(place: str) -> Iterator[None]:
    """In a folder of its own, for the quantizer leaves files where it runs, and without log lines.

    Its warnings go through the root logger.
    """
    before, folder = logging.root.manager.disable, os.getcwd()
    logging.disable(logging.WARNING)
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(folder)
        logging.disable(before)
