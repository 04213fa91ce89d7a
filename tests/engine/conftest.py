from tests.operator.cluster.conftest import cluster
from tests.sandbox.conftest import home, run_in_namespace

__all__ = ["cluster", "home", "run_in_namespace"]
