"""Checkpoints: complete or absent, checked before they are used, with no pickled code in them."""
