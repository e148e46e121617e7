"""Keras' own training loop on its TensorFlow or JAX back end, with its own applications where it has the model."""

import os
from typing import Any

from protocol import serve, settings, unavailable

CIFAR_BLOCKS = {"resnet8": 1, "resnet20": 3}


def cifar_resnet(keras: Any, blocks: int, size: int, classes: int) -> Any:
    """ResNet for small images as the paper has it (padded shortcuts), in Keras' own layers."""
    layers = keras.layers

    def unit(x: Any, width: int, stride: int, active: bool) -> Any:
        x = layers.Conv2D(width, 3, strides=stride, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        return layers.ReLU()(x) if active else x

    inputs = keras.Input((size, size, 3))
    x = unit(inputs, 16, 1, True)
    for stage, width in enumerate((16, 32, 64)):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            beside = x
            if stride == 2:
                picked = layers.AveragePooling2D(1, strides=2)(x)
                beside = layers.Concatenate()([picked, layers.Rescaling(0.0)(picked)])
            x = layers.ReLU()(layers.Add()([unit(unit(x, width, stride, True), width, 1, False), beside]))
    outputs = layers.Dense(classes, activation="softmax")(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, outputs)


def main() -> None:
    asked = settings()
    os.environ["KERAS_BACKEND"] = asked["backend"]
    try:
        import keras
        import numpy as np

        if asked["backend"] == "tensorflow":
            import tensorflow as tf

            tf.config.threading.set_intra_op_parallelism_threads(asked["threads"])
    except ImportError as error:
        unavailable(error)
    size = asked["image_size"]
    makers = {"resnet50": keras.applications.ResNet50, "efficientnet-b0": keras.applications.EfficientNetB0}
    if asked["model"] in makers:
        model = makers[asked["model"]](weights=None, input_shape=(size, size, 3), classes=asked["classes"])
    elif asked["model"] in CIFAR_BLOCKS:
        model = cifar_resnet(keras, CIFAR_BLOCKS[asked["model"]], size, asked["classes"])
    else:
        unavailable(f"keras has no {asked['model']}")
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
    rng = np.random.default_rng(0)
    images = rng.standard_normal((asked["batch"], size, size, 3), dtype=np.float32)
    labels = rng.integers(0, asked["classes"], asked["batch"])
    serve(lambda: model.train_on_batch(images, labels), asked["batch"])


if __name__ == "__main__":
    main()
