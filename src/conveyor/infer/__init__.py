"""From a trained model to numbers: engines, their choice, precisions, throughput and latency, export."""

import enum

ENGINES = ("auto", "torch", "onnxruntime", "onnxruntime-per-core", "openvino", "openvino-per-core")
"""Names for `--engine`; here, so that a command can list them without importing any of them."""


class AnswerPrecision(enum.StrEnum):
    """The numbers that a model computes its answers in; the values stand in options, exports and records."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"


PRECISIONS = tuple(AnswerPrecision)
