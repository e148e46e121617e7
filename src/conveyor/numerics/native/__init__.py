"""Kernels in C for what eager PyTorch does in too many passes over memory; compiled on first use where a compiler is."""
