"""Keras' own training loop on its TensorFlow or JAX back end, with its own applications where it has the model."""

import os

from protocol import serve, settings, unavailable


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
    makers = {"resnet50": keras.applications.ResNet50, "efficientnet-b0": keras.applications.EfficientNetB0}
    if asked["model"] not in makers:
        unavailable(f"keras has no {asked['model']}")
    size = asked["image_size"]
    model = makers[asked["model"]](weights=None, input_shape=(size, size, 3), classes=asked["classes"])
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
    rng = np.random.default_rng(0)
    images = rng.standard_normal((asked["batch"], size, size, 3), dtype=np.float32)
    labels = rng.integers(0, asked["classes"], asked["batch"])
    serve(lambda: model.train_on_batch(images, labels), asked["batch"], asked.get("warmup", 2))


if __name__ == "__main__":
    main()
