"""From the bytes of a photograph to a crop: the one decoder of training, validation, prediction and serving."""
