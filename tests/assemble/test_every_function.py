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


#: The calls whose graphs are compared with the golden file.
EXAMPLES = (
    "base()",
    "base(dev=True)",
    "base(image='python:3.11-slim')",
    "base(language='julia')",
    "base(os='ubuntu22.04', language='r')",
    "config.apt_source('deb x')",
    "config.pip_index(url='https://x.org/simple', extra_url='https://y.org', trust=True)",
    "config.sagemaker(['python', '/workspace/train.py'])",
    "git_config(name='Ada', email='ada@example.org', editor='vim')",
    "install.apt_packages(['git', 'vim=2:9*']); install.apt_packages(name=('curl',))",
    "install.codex()",
    "install.conda_packages(env_file='env.yaml')",
    "install.cuda('12.4')",
    "install.julia_packages(['Flux', 'JSON@0.21'])",
    "install.pixi(use_pixi_mirror=True, pypi_index='https://x.org')",
    "install.python_packages(['numpy', 'torch ; python_version > \"3\"'])",
    "install.uv()",
    "io.copy(source='/bin/x', target='/bin/x', image='team/x:1')",
    "io.http('https://x.org/m.bin')",
    "run(['make', 'make install'])",
    "runtime.environ(env={'B': '1', 'A': ''}, extra_path=['/opt/bin'])",
    "shell('zsh')",
)

#: Calls that leave the graph as it is, of functions that can change it.
NOTHING_TO_DO = (
    "base()",
    "config.repo('https://x.org/a', description='é')",  # labels
    "install.apt_packages()",
    "install.conda()",
    "install.conda(use_mamba=True)",
    "run([])",
    "run(['', ' \\n'])",
)


def describe_addition(graph: Graph) -> dict[str, Any]:
    """Describe what a graph has that the one of ``base()`` has not."""
    base, description = describe_graph(assemble(body("base()"), None)), describe_graph(graph)
    return {
        name: [
            item if isinstance(item, str) else " ".join(item)
            for item in value
            if item not in base[name]
        ]
        if isinstance(value, list)
        else value
        for name, value in description.items()
        if value != base[name]
    }


def test_the_graphs_of_examples_match_their_golden_file() -> None:
    result = {text: describe_addition(assemble(body(text), None)) for text in EXAMPLES[1:]}
    result |= {"base()": describe_graph(assemble(body("base()"), None))}
    text = json.dumps(result, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    write_on_request(GOLDEN, text)
    assert result == json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", [text for text, _ in CASES])
def test_the_steps_of_a_call_are_named_and_added_to_those_of_the_base(text: str) -> None:
    graph = describe_graph(assemble(body(text), None))
    names = [vertex[2] for vertex in graph["vertices"]]
    assert all(names)
    assert len(set(names)) == len(names)
    called = [name for name in FUNCTIONS if re.search(rf"(?<![\w.]){re.escape(name)}\(", text)]
    is_unchanged = graph == describe_graph(assemble(body("base()"), None))
    at_start = all(FUNCTIONS[name].runtime_only for name in called)
    assert is_unchanged == (at_start or text in NOTHING_TO_DO)


def test_an_included_function_adds_its_steps() -> None:
    library = "def tools():\n    install.apt_packages(['git'])\n"
    included = assemble(envd(INCLUDE, lib=library), None)
    assert describe_graph(included) == describe_graph(
        assemble(body("install.apt_packages(['git'])"), None)
    )


#: Where the image, or the running environment, is looked into; not where a call is refused.
REAL_TESTS = [
    path for path in (TESTS / "e2e").glob("test_*.py") if not path.name.startswith("test_bad_")
]


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_function_is_built_by_a_real_test(name: str) -> None:
    call = re.compile(rf"(?<![\w.]){re.escape(name)}\(")
    assert any(call.search(path.read_text(encoding="utf-8")) for path in REAL_TESTS)
