"""Golden tables: every variable that every framework injects, in order.

After an intended change, run ``DANLU_GOLDEN=write pytest tests/training/frameworks`` and review the
diff. The values from Kubeflow's own tests and sources are literals in the tests of the frameworks,
so a table cannot contradict them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from danlu.training.registry import find_framework, list_frameworks
from tests.golden import write_on_request
from tests.training.frameworks.cases import CASES, Tables, tables

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", sorted(CASES))
def test_variables_match_the_golden_table(name: str) -> None:
    path = GOLDEN / f"{name}.json"
    text = _format_tables(tables(name))
    write_on_request(path, text)
    assert json.loads(path.read_text()) == json.loads(text)
    assert path.read_text() == text


def test_every_builtin_framework_has_a_golden_table() -> None:
    own = {
        framework.name
        for framework in list_frameworks()
        if framework.build_env.__module__.startswith("danlu.")
    }
    assert own == set(CASES) == {path.stem for path in GOLDEN.glob("*.json")}


@pytest.mark.parametrize("name", sorted(CASES))
def test_no_variable_is_set_twice(name: str) -> None:
    framework = find_framework(name)
    for case, replicas in tables(name).items():
        for replica, containers in replicas.items():
            for variables in containers.values():
                names = [variable.split("=")[0] for variable in variables]
                assert len(names) == len(set(names)), (framework.kind, case, replica)


def _format_tables(found: Tables) -> str:
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"
