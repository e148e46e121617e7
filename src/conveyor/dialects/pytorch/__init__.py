"""The dialect of the PyTorch programs."""
