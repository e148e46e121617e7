"""Benchmarks: run specifications, measure against peers in the same run, keep records, compare them."""
