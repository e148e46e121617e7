"""Pipelines: cutting a model into stages, the schedules that run them, and what crosses a boundary."""
