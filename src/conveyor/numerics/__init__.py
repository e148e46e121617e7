"""Number formats, rounding, losses, loss scale, recompute: the arithmetic around a model."""
