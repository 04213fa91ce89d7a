"""The work for a job does not grow with the number of jobs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import danlu
from danlu.kube import controller, events, expectations, informer, priorities, workqueue
from tests.operator.operator_namespace import OperatorNamespace

pytestmark = pytest.mark.anyio

FEW, MANY = 3, 20
OPERATOR = str(Path(danlu.__file__).with_name("operator"))
#: What the operator alone uses of the client: tests send requests, too.
SHARED = frozenset(
    module.__file__
    for module in (controller, events, expectations, informer, priorities, workqueue)
)


#: Lines per job and function that depend on how often the tests let tasks run.
SLACK = 10


@contextmanager
def counted_lines() -> Iterator[Counter[str]]:
    """Count the lines of the operator's code that run, each turn of a loop anew, by function."""
    lines: Counter[str] = Counter()

    def count_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            lines[f"{Path(frame.f_code.co_filename).name}: {frame.f_code.co_qualname}"] += 1
        return count_line

    def enter_frame(frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        return count_line if file in SHARED or file.startswith(OPERATOR) else None

    before = sys.gettrace()
    sys.settrace(enter_frame)
    try:
        yield lines
    finally:
        sys.settrace(before)


async def run_jobs(site: OperatorNamespace, names: list[str]) -> dict[str, float]:
    """Run jobs of three replicas to their success; return the operator's work per job by kind."""
    assert site.fake is not None
    before = Counter(site.fake.counts)
    pods = [
        f"{name}-{replica}" for name in names for replica in ("master-0", "worker-0", "worker-1")
    ]

    async def pods_exist() -> bool:
        return set(pods) <= set(await site.pods())

    async def all_are(state: str) -> bool:
        return all([await site.state(name=name) == state for name in names])

    with counted_lines() as work:
        for name in names:
            await site.submit(name=name, run={"cleanPodPolicy": "None"}, Master=1, Worker=2)
        await site.eventually(pods_exist)
        await site.run(*pods)
        await site.eventually(lambda: all_are("Running"))
        await site.end(*pods)
        await site.eventually(lambda: all_are("Succeeded"))
        await site.pass_time(5)
    for (verb, resource), number in (Counter(site.fake.counts) - before).items():
        # Tests read, too.
        if verb in ("create", "patch", "delete"):
            work[f"{verb} {resource}"] = number
    return {kind: number / len(names) for kind, number in work.items()}


def find_growth(few: dict[str, float], more: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return what takes more work per job, with the work before and after."""
    return {
        kind: (few.get(kind, 0.0), number)
        for kind, number in more.items()
        if number > 1.1 * few.get(kind, 0.0) + (SLACK if ": " in kind else 0)
    }


async def test_the_work_for_a_job_does_not_grow_with_the_number_of_jobs(
    fake_site: OperatorNamespace,
) -> None:
    async with fake_site.operator_runs() as manager:
        few = await run_jobs(fake_site, [f"few-{number}" for number in range(FEW)])
        many = await run_jobs(fake_site, [f"many-{number}" for number in range(MANY)])
        late = await run_jobs(fake_site, [f"late-{number}" for number in range(FEW)])
        assert {informer.list_count for informer in manager._informers.values()} == {1}
    assert few["reconcile.py: Reconciler._reconcile"] > SLACK
    assert few["create pods"] == 3
    assert not find_growth(few, many), "jobs that run at the same time"
    assert not find_growth(few, late), "jobs that run next to finished ones"
