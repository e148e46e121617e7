"""Accuracy of a model on a validation set: the run's own weights, saved checkpoints, plain weights."""
