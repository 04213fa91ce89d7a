"""What each function of the language makes of a graph: golden, and every function has one.

``DANLU_WRITE_GOLDEN=1`` writes the file again; read the difference before it is committed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from danlu.assemble.assemble import assemble
from danlu.graph.ops import Merge
from danlu.graph.types import Graph
from danlu.lang.functions import FUNCTIONS
from tests.golden import write_if_asked
from tests.lang.support import body, envd
from tests.lang.test_declarations import CASES

GOLDEN = Path(__file__).with_name("graphs.json")

INCLUDE = """
lib = include("https://example.org/lib", ref="v1")
def build():
    lib.tools()
"""


def described(graph: Graph) -> dict[str, Any]:
    """A graph as people read it: its vertices by what they do, and how the image runs."""
    vertices = [
        [vertex.branch, type(vertex.op).__name__, vertex.name]
        for vertex in graph.walk()
        if not isinstance(vertex.op, Merge)
    ]
    config = graph.config
    return {
        "vertices": vertices,
        "environment": [list(pair) for pair in config.environment],
        "path": list(config.path),
        "entrypoint": list(config.entrypoint),
        "user": config.user,
    }


def graphs() -> dict[str, dict[str, Any]]:
    made = {text: described(assemble(body(text), None)) for text, _ in CASES}
    library = "def tools():\n    install.apt_packages(['git'])\n"
    made["include(…)"] = described(assemble(envd(INCLUDE, lib=library), None))
    return made


def test_every_function_makes_the_graph_it_made_before() -> None:
    made = graphs()
    text = json.dumps(made, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    write_if_asked(GOLDEN, text)
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert sorted(made) == sorted(golden)
    for text, graph in made.items():
        assert graph == golden[text], text


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_function_has_a_golden_graph(name: str) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert any(f"{name}(" in text for text in golden)
