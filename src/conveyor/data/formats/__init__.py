"""Data sets on the disk: finding, downloading and reading each format."""
