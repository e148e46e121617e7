"""The clients are tested against the server of the server's own tests."""

from tests.serve.conftest import expected, model_folder, server

__all__ = ["expected", "model_folder", "server"]
