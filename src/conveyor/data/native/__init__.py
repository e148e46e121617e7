"""Decoding, cropping and resizing a JPEG in one C function, compiled once for this processor."""
