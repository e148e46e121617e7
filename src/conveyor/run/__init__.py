"""The life of a run: checks before it, its worker, its folder, its end."""
