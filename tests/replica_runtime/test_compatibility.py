"""The replica runtime is compatible with old Pythons and uses only the standard library."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from danlu import replica_runtime

MODULES = sorted(path.stem for path in Path(replica_runtime.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_module_uses_only_old_syntax_and_the_standard_library(name: str) -> None:
    source = (Path(replica_runtime.__file__).parent / f"{name}.py").read_text()
    tree = ast.parse(source, feature_version=(3, 6))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = {str(node.module).partition(".")[0]}
        else:
            continue
        assert names <= sys.stdlib_module_names
        assert "__future__" not in names
        if isinstance(node, ast.ImportFrom) and node.module == "datetime":
            assert not {"UTC"} & {alias.name for alias in node.names}, "new in Python 3.11"
