"""int8: onnxruntime's static quantization, with ranges from calibration images."""

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from killick.deploy.parity import BATCH
from killick.storage.exported_file import INPUT

if TYPE_CHECKING:
    import onnx

# The products, where the time goes; sums, softmax and normalization stay in float32.
QUANTIZED = ["Conv", "MatMul", "Gemm"]


def quantize(graph: "onnx.ModelProto", images: Tensor) -> "onnx.ModelProto":
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
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place), silent():
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
def silent() -> Iterator[None]:
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
