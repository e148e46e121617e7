"""Number formats, rounding, random numbers, convolutions, norms, loss scale, recompute: the arithmetic around a model."""
