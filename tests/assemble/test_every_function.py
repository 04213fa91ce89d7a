"""The graph of each function of the language: compared with golden files, and built for real.

``DANLU_WRITE_GOLDEN=1`` writes the file again; read the difference before it is committed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from danlu.assemble.assemble import assemble
from danlu.graph.ops import Merge
from danlu.graph.types import Graph
from danlu.lang.functions import FUNCTIONS
from tests.golden import write_on_request
from tests.lang.support import body, envd
from tests.lang.test_declarations import CASES

GOLDEN = Path(__file__).with_name("graphs.json")
TESTS = Path(__file__).resolve().parent.parent

INCLUDE = """
lib = include("https://example.org/lib", ref="v1")
def build():
    lib.tools()
"""


def describe_graph(graph: Graph) -> dict[str, Any]:
    """Describe a graph readably: its vertices by name, and the image configuration."""
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
    results = {text: describe_graph(assemble(body(text), None)) for text, _ in CASES}
    library = "def tools():\n    install.apt_packages(['git'])\n"
    results["include(…)"] = describe_graph(assemble(envd(INCLUDE, lib=library), None))
    return results


def test_the_graph_of_each_function_matches_its_golden_file() -> None:
    result = graphs()
    text = json.dumps(result, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    write_on_request(GOLDEN, text)
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert sorted(result) == sorted(golden)
    for text, graph in result.items():
        assert graph == golden[text], text


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_function_has_a_golden_graph(name: str) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert any(f"{name}(" in text for text in golden)


#: Where the image, or the running environment, is looked into; not where a call is refused.
REAL_TESTS = [
    path for path in (TESTS / "e2e").glob("test_*.py") if not path.name.startswith("test_bad_")
]


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_function_is_built_by_a_real_test(name: str) -> None:
    call = re.compile(rf"(?<![\w.]){re.escape(name)}\(")
    assert any(call.search(path.read_text(encoding="utf-8")) for path in REAL_TESTS)
