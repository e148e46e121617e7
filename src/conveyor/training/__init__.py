"""The training loop, the worker that runs it, and what happens around it."""
