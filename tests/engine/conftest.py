from tests.sandbox.conftest import forked, home

__all__ = ["forked", "home"]
