from tests.sandbox.conftest import home, run_in_namespace

__all__ = ["home", "run_in_namespace"]
