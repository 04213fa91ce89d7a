"""Golden tables: every variable that every framework injects, in order.

After an intended change, run ``DANLU_GOLDEN=write pytest tests/training/frameworks`` and review the
diff. The values from Kubeflow's own tests and sources are literals in the tests of the frameworks,
so a table cannot contradict them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from danlu.training.registry import find_framework, list_frameworks
from tests.golden import write_on_request
from tests.training.frameworks.cases import CASES, Tables, tables
from tests.training.frameworks.topology import job_of, render_added_variables

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


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("jax", {}),
        ("mpi", {"Launcher": 1}),
        ("mxnet", {"Scheduler": 1, "Server": 2}),
        ("paddle", {"Master": 2}),
        ("pytorch", {"Master": 1}),
        ("tensorflow", {"PS": 2}),
        ("xgboost", {"Master": 1}),
    ],
)
def test_many_workers_differ_only_in_their_index(name: str, types: dict[str, int]) -> None:
    framework = find_framework(name)
    found = render_added_variables(framework, job_of(framework, {**types, "Worker": 5}))
    workers = [found[f"worker-{index}"].get(framework.container, []) for index in range(5)]
    for variables in zip(*workers, strict=True):
        # The last number is the index, such as in RANK=3 and {"task": {"index": 3}}.
        parts = [re.split(r"(\d+)(?=\D*$)", variable) for variable in variables]
        if len(set(variables)) > 1:
            first = int(parts[0][1])
            assert [int(part[1]) - first for part in parts] == [0, 1, 2, 3, 4]
            assert len({(part[0], part[2]) for part in parts}) == 1


def _format_tables(found: Tables) -> str:
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"
