"""The dialect of the TensorFlow 2 programs."""
