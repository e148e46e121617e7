"""Keras' prediction on its TensorFlow back end, as a compiled function."""

import os
from collections.abc import Callable
from typing import Any

from protocol import serve_batches, settings, unavailable


def main() -> None:
    asked = settings()
    os.environ["KERAS_BACKEND"] = asked["backend"]
    try:
        import keras
        import numpy as np
        import tensorflow as tf
    except ImportError as error:
        unavailable(error)
    tf.config.threading.set_intra_op_parallelism_threads(asked["threads"])
    makers = {"resnet50": keras.applications.ResNet50, "efficientnet-b0": keras.applications.EfficientNetB0}
    if asked["model"] not in makers:
        unavailable(f"keras has no {asked['model']}")
    size = asked["image_size"]
    model = makers[asked["model"]](weights=None, input_shape=(size, size, 3))

    def make(batch: int) -> Callable[[], Any]:
        images = tf.constant(np.random.default_rng(0).standard_normal((batch, size, size, 3), dtype=np.float32))
        predict = tf.function(lambda batch: model(batch, training=False))
        return lambda: predict(images).numpy()

    serve_batches(make)


if __name__ == "__main__":
    main()
