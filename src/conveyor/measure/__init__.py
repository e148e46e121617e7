"""Measuring: programs in alternating rounds, parts of a model, latencies, and what the processor is."""
