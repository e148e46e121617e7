"""From a trained model to numbers: engines, their choice, precisions, throughput and latency, export."""

ENGINES = ("auto", "torch", "onnxruntime", "onnxruntime-per-core", "openvino", "openvino-per-core")
"""Names for `--engine`; here, so that a command can list them without importing any of them."""
PRECISIONS = ("float32", "bfloat16", "int8")
