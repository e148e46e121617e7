from tests.launch.network import namespaces

__all__ = ["namespaces"]
