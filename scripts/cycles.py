"""Check that no modules import each other in a circle, also inside functions and for types."""

from __future__ import annotations

import sys
from graphlib import CycleError, TopologicalSorter

import grimp


def find_cycle() -> list[str]:
    """Return the modules of a circle, the first one again at the end; empty if there is none."""
    graph = grimp.build_graph("danlu", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


if __name__ == "__main__":
    if cycle := find_cycle():
        sys.exit(f"cycles: modules import each other: {' <- '.join(cycle)}")
