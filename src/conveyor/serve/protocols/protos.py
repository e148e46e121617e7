"""The messages of both gRPC interfaces, described here and built at run time.

No generated files, and a pool of their own: other packages may bring the same messages without a clash. Only the
fields that this server or its clients use are described; unknown ones are skipped, as the format provides.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "uint32": 13,
}  # fmt: skip
_MESSAGE = 11

Fields = dict[str, Any]

_INFERENCE: dict[str, Fields] = {
    "ServerLiveRequest": {},
    "ServerLiveResponse": {"live": (1, "bool")},
    "ServerReadyRequest": {},
    "ServerReadyResponse": {"ready": (1, "bool")},
    "ModelReadyRequest": {"name": (1, "string"), "version": (2, "string")},
    "ModelReadyResponse": {"ready": (1, "bool")},
    "ServerMetadataRequest": {},
    "ServerMetadataResponse": {"name": (1, "string"), "version": (2, "string"), "extensions": (3, "string*")},
    "ModelMetadataRequest": {"name": (1, "string"), "version": (2, "string")},
    "TensorMetadata": {"name": (1, "string"), "datatype": (2, "string"), "shape": (3, "int64*")},
    "ModelMetadataResponse": {
        "name": (1, "string"), "versions": (2, "string*"), "platform": (3, "string"),
        "inputs": (4, "TensorMetadata*"), "outputs": (5, "TensorMetadata*"),
    },
    "InferParameter": {
        "bool_param": (1, "bool?"), "int64_param": (2, "int64?"), "string_param": (3, "string?"),
        "double_param": (4, "double?"), "uint64_param": (5, "uint64?"),
    },
    "InferTensorContents": {
        "bool_contents": (1, "bool*"), "int_contents": (2, "int32*"), "int64_contents": (3, "int64*"),
        "uint_contents": (4, "uint32*"), "uint64_contents": (5, "uint64*"), "fp32_contents": (6, "float*"),
        "fp64_contents": (7, "double*"), "bytes_contents": (8, "bytes*"),
    },
    "InferInputTensor": {
        "name": (1, "string"), "datatype": (2, "string"), "shape": (3, "int64*"),
        "parameters": (4, "map InferParameter"), "contents": (5, "InferTensorContents"),
    },
    "InferRequestedOutputTensor": {"name": (1, "string"), "parameters": (2, "map InferParameter")},
    "ModelInferRequest": {
        "model_name": (1, "string"), "model_version": (2, "string"), "id": (3, "string"),
        "parameters": (4, "map InferParameter"), "inputs": (5, "InferInputTensor*"),
        "outputs": (6, "InferRequestedOutputTensor*"), "raw_input_contents": (7, "bytes*"),
    },
    "InferOutputTensor": {
        "name": (1, "string"), "datatype": (2, "string"), "shape": (3, "int64*"),
        "parameters": (4, "map InferParameter"), "contents": (5, "InferTensorContents"),
    },
    "ModelInferResponse": {
        "model_name": (1, "string"), "model_version": (2, "string"), "id": (3, "string"),
        "parameters": (4, "map InferParameter"), "outputs": (5, "InferOutputTensor*"),
        "raw_output_contents": (6, "bytes*"),
    },
}  # fmt: skip
"""The Open Inference Protocol. Nested messages are declared at the top level: the bytes sent are the same."""

_TENSORFLOW: dict[str, Fields] = {
    "Dim": {"size": (1, "int64"), "name": (2, "string")},
    "TensorShapeProto": {"dim": (2, "Dim*"), "unknown_rank": (3, "bool")},
    "TensorProto": {
        "dtype": (1, "int32"), "tensor_shape": (2, "TensorShapeProto"), "version_number": (3, "int32"),
        "tensor_content": (4, "bytes"), "float_val": (5, "float*"), "double_val": (6, "double*"), "int_val": (7, "int32*"),
        "string_val": (8, "bytes*"), "int64_val": (10, "int64*"), "uint32_val": (16, "uint32*"), "uint64_val": (17, "uint64*"),
    },
}  # fmt: skip
_SERVING: dict[str, Fields] = {
    "Int64Value": {"value": (1, "int64")},
    "ModelSpec": {"name": (1, "string"), "version": (2, "Int64Value"), "signature_name": (3, "string"), "version_label": (4, "string")},
    "PredictRequest": {
        "model_spec": (1, "ModelSpec"), "inputs": (2, "map .tensorflow.TensorProto"), "output_filter": (3, "string*"),
    },
    "PredictResponse": {"outputs": (1, "map .tensorflow.TensorProto"), "model_spec": (2, "ModelSpec")},
}  # fmt: skip
_HEALTH: dict[str, Fields] = {
    "HealthCheckRequest": {"service": (1, "string")},
    "HealthCheckResponse": {"status": (1, "int32")},
}


def _file(package: str, messages: dict[str, Fields], *needs: str) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name=f"conveyor/{package}.proto",
        package=package,
        syntax="proto3",
        dependency=[f"conveyor/{each}.proto" for each in needs],
    )
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            _add_field(message, field_name, number, kind, f".{package}.{name}", package)
    return file


def _add_field(
    message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: str, owner: str, package: str
) -> None:
    """`kind` is a type or a message's name; `*` marks a list, `?` a field whose presence shows, `map X` string -> X."""
    field = message.field.add(name=name, number=number, label=3 if kind.endswith("*") or kind.startswith("map ") else 1)
    if kind.startswith("map "):
        entry = message.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string", owner, package)
        _add_field(entry, "value", 2, kind.removeprefix("map "), owner, package)
        field.type, field.type_name = _MESSAGE, f"{owner}.{entry.name}"
        return
    plain = kind.rstrip("*?")
    if kind.endswith("?"):
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
        field.proto3_optional = True
    if plain in _TYPES:
        field.type = _TYPES[plain]
    else:
        field.type, field.type_name = _MESSAGE, plain if plain.startswith(".") else f".{package}.{plain}"


def _build() -> dict[str, Any]:
    packages = {
        "inference": _INFERENCE, "tensorflow": _TENSORFLOW, "tensorflow.serving": _SERVING, "grpc.health.v1": _HEALTH
    }  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    for package, messages in packages.items():
        needs = ("tensorflow",) if package == "tensorflow.serving" else ()
        pool.AddSerializedFile(_file(package, messages, *needs).SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for package, messages in packages.items()
        for name in messages
    }


MESSAGES: dict[str, Any] = _build()
"""Message classes by their short names."""

INFERENCE_SERVICE = "inference.GRPCInferenceService"
PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
HEALTH_SERVICE = "grpc.health.v1.Health"
LARGE_MESSAGES = (
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.http2.write_buffer_size", 4 << 20),
    ("grpc.http2.bdp_probe", 0),
)
"""Settings of both ends for messages of some hundred kilobytes: fewer frames, writes and WINDOW_UPDATE frames."""
