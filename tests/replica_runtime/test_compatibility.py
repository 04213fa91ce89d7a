"""The replica runtime is compatible with old Pythons and uses only the standard library."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from danlu import replica_runtime
from danlu.notebook import inside

#: Also what kernels of environments import, next to the modules of this package.
MODULES = sorted(
    path for package in (replica_runtime, inside) for path in Path(package.__path__[0]).glob("*.py")
)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_module_uses_only_old_syntax_and_the_standard_library(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 6))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.level or _is_sent(node)):
            names = {str(node.module).partition(".")[0]}
        else:
            continue
        assert names <= sys.stdlib_module_names
        assert "__future__" not in names
        if isinstance(node, ast.ImportFrom) and node.module == "datetime":
            assert not {"UTC"} & {alias.name for alias in node.names}, "new in Python 3.11"


def _is_sent(node: ast.ImportFrom) -> bool:
    """Return whether the import is of a module that is sent along."""
    return (node.module or "").startswith("danlu.replica_runtime")
