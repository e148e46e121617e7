"""Kernels in C for what eager PyTorch does in too many passes over memory; compiled when the package is built."""
