"""Golden tables: every variable that every framework injects, in order.

After a change that is meant: ``DANLU_GOLDEN=write pytest tests/training/frameworks``, and read the
difference. What Kubeflow's own tests and sources say stands literally in the tests of the
frameworks, so no table can be written that contradicts it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from danlu.training.registry import framework_of, frameworks
from tests.training.frameworks.cases import CASES, Tables, tables

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", sorted(CASES))
def test_variables_are_those_of_the_golden_table(name: str) -> None:
    path = GOLDEN / f"{name}.json"
    text = _written(tables(name))
    if os.environ.get("DANLU_GOLDEN") == "write":
        path.write_text(text)
        pytest.skip("the golden table is written anew")
    assert json.loads(path.read_text()) == json.loads(text)
    assert path.read_text() == text


def test_every_framework_of_danlu_has_a_golden_table() -> None:
    own = {one.name for one in frameworks() if one.environment.__module__.startswith("danlu.")}
    assert own == set(CASES) == {path.stem for path in GOLDEN.glob("*.json")}


@pytest.mark.parametrize("name", sorted(CASES))
def test_no_variable_is_given_twice(name: str) -> None:
    framework = framework_of(name)
    for case, replicas in tables(name).items():
        for replica, containers in replicas.items():
            for variables in containers.values():
                names = [variable.split("=")[0] for variable in variables]
                assert len(names) == len(set(names)), (framework.kind, case, replica)


def _written(found: Tables) -> str:
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"
