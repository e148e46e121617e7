"""The dialect of the TensorFlow 1 programs."""
