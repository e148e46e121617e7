"""What the dialects add to the rest of the package. No torch here: see `conveyor.hooks`."""

HOOKS = {
    "log style": {
        "tensorflow1": "conveyor.dialects.log_lines:TensorFlow1",
        "tensorflow2": "conveyor.dialects.log_lines:TensorFlow2",
        "pytorch": "conveyor.dialects.log_lines:PyTorch",
        "popart": "conveyor.dialects.log_lines:PopArt",
    },
    "configurations": {"all": "conveyor.dialects.configurations:ours"},
    "layer names": {"all": "conveyor.dialects.layer_names:every_name"},
}
