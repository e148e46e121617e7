"""Checkpoints: complete or absent, checked before they are used, never executed."""
