"""`python3 -m examples_utils benchmark`: the benchmark runner of this package."""
