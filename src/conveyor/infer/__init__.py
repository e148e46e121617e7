"""From a trained model to numbers: engines, their choice, throughput and latency, export."""

ENGINES = ("auto", "native", "torch", "onnxruntime", "onnxruntime-per-core", "openvino")
"""Names for `--engine`; here, so that a command can list them without bringing in any of them."""
