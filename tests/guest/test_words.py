"""What runs in replicas has the words of old Pythons, and of nothing but their library."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from danlu import guest

GUESTS = sorted(one.stem for one in Path(guest.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("name", GUESTS)
def test_a_guest_keeps_to_the_words_of_old_pythons_and_to_its_neighbours(name: str) -> None:
    source = (Path(guest.__file__).parent / f"{name}.py").read_text()
    tree = ast.parse(source, feature_version=(3, 6))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = {str(node.module).partition(".")[0]}
        else:
            continue
        assert names <= sys.stdlib_module_names
        assert "__future__" not in names
