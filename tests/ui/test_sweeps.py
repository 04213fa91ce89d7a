"""The pages of sweeps: the points in order, the chart, and the best one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.jobs.types import JobView
from danlu.sweeps.labels import make_sweep_labels, make_trial_labels
from danlu.sweeps.options import create_point_source, execute_sweep, parse_sweep_options
from danlu.sweeps.report import SweepObjective
from danlu.sweeps.view_model import describe_best, format_point
from danlu.training.types import ConditionType
from danlu.ui.html import MAX_TEXT_LENGTH
from tests.jobs.local.support import spec, submission
from tests.sweeps.sweep_jobs import LEADER
from tests.ui.recorded_jobs import RecordedJobs, recorded_view
from tests.ui.site import make_site, serve, wait_for_part

pytestmark = pytest.mark.anyio

HOSTILE = "<img src=x onerror=alert(1)>\x1b]0;title\x07\"'"
#: Where the program of the real sweep gets its points.
_PROGRAM = "import os, danlu; danlu.report(loss=abs(float(os.environ['DANLU_SWEEP_LR']) - 0.3))"


def grid(count: int, name: str = "tune", **objective: str) -> Iterator[JobView]:
    """The jobs of a sweep, in which each second one is better than the one before it."""
    measure = SweepObjective(objective.get("metric", "loss"))
    for number in range(1, count + 1):
        point = {
            "lr": f"{10 ** -(number % 5):g}",
            "depth": str(number % 7),
            "optimizer": ("adam", "sgd", "lion")[number % 3],
        }
        labels = make_trial_labels(name, point) | make_sweep_labels(measure, count, LEADER)
        loss = 1 / number if number % 2 else 2.0 + number
        yield recorded_view(
            f"{name}-{number:04}", labels, {"loss": loss, "accuracy": 1 - 1 / number}
        )


def make_reporting_script() -> str:
    """A shell script that reports a loss for the value of ``lr``."""
    return f'{sys.executable} -c "{_PROGRAM}" # {{lr}}'


def find_rows(text: str) -> list[str]:
    return re.findall(r'<tr[^>]* data-key="([^"]*)"', text)


async def test_real_sweep_is_ranked_with_the_command_of_its_best_point(
    home: Path, jobs: LocalJobs, work: Path
) -> None:
    options = parse_sweep_options(["lr=0.1,0.3,0.6"], metric="loss")
    base = submission(work, spec(make_reporting_script()), name="tune")
    report = await execute_sweep(options, create_point_source(options), base=base, jobs=jobs)
    best = report.best
    assert best is not None
    async with serve(make_site(home, jobs)) as client:
        _, text = await client.ask("/sweeps/tune")
        assert find_rows(text) == [trial.name for trial in report.rank_trials()]
        assert find_rows(text)[0] == best.name
        assert "3 of 3 points finished" in text
        assert f"DANLU_SWEEP_LR={best.point['lr']}" in text
        assert 'href="/sweeps/tune"' in (await client.ask(f"/jobs/{best.name}"))[1]
        _, listed = await client.ask("/sweeps")
        assert find_rows(listed) == ["tune"]
        assert format_point(best) in listed


async def test_values_of_a_pattern_are_read_in_the_logs(
    home: Path, jobs: LocalJobs, work: Path
) -> None:
    options = parse_sweep_options(["x=1,2,3"], pattern="score=([0-9.]+)", goal="max")
    base = submission(work, spec("echo score=0; echo score={x}.5; exit 0 {x}"), name="tune")
    report = await execute_sweep(options, create_point_source(options), base=base, jobs=jobs)
    async with serve(make_site(home, jobs)) as client:
        _, text = await client.ask("/sweeps/tune")
        assert find_rows(text) == [trial.name for trial in report.rank_trials()]
        assert describe_best(report) in text
        _, text = await client.ask("/sweeps/tune?goal=min")
        assert find_rows(text) == ["tune-1", "tune-2", "tune-3"]
    async with serve(make_site(home, jobs, where="kubernetes")) as client:
        _, text = await client.ask("/sweeps/tune")
        assert "Its values are in the logs" in text


async def test_point_that_ends_changes_the_open_page(home: Path) -> None:
    views = {view.name: view for view in grid(3)}
    running = recorded_view("tune-0002", views["tune-0002"].labels, state=ConditionType.RUNNING)
    backend = RecordedJobs(views.values())
    backend.views_by_name["tune-0002"] = running
    async with serve(make_site(home, backend)) as client:
        _, text = await client.ask("/sweeps/tune")
        assert "2 of 3 points finished" in text
        backend.views_by_name["tune-0002"] = views["tune-0002"]
        await wait_for_part(client, "/sweeps/tune", "head", "3 of 3 points finished")


async def test_metric_and_goal_of_the_address_are_compared(home: Path) -> None:
    async with serve(make_site(home, RecordedJobs(grid(20)))) as client:
        _, text = await client.ask("/sweeps/tune?metric=accuracy&goal=max")
        assert find_rows(text)[0] == "tune-0020"
        assert "best: tune-0020" in text
        _, text = await client.ask("/sweeps/tune?metric=none")
        assert "No job reported none; reported metrics: accuracy, loss" in text
        assert (await client.ask("/sweeps/other"))[0] == 404


async def test_thousand_points_are_drawn_once_and_listed_in_parts(home: Path) -> None:
    async with serve(make_site(home, RecordedJobs(grid(1000)))) as client:
        _, text = await client.ask("/sweeps/tune")
        assert len(find_rows(text)) == 100
        chart = re.search(r"<svg class=\"parallel.*?</svg>", text)
        assert chart is not None
        paths = ElementTree.fromstring(chart[0]).findall("path[@class]")
        lines = [path for path in paths if path.get("class", "").startswith("trial")]
        assert sum(path.get("d", "").count("M") for path in lines) == 1000
        assert len(lines) < 150
        _, last = await client.ask("/sweeps/tune?start=900")
        assert find_rows(last)[-1] == "tune-1000"
        assert len(text) < 150_000


async def test_markup_in_a_sweep_stays_text(home: Path) -> None:
    labels = make_trial_labels(HOSTILE, {HOSTILE: HOSTILE, "huge": "x" * 100_000})
    measure = make_sweep_labels(SweepObjective(HOSTILE, pattern="("), 2, LEADER)
    views = [
        recorded_view(f"{HOSTILE}-1", {**labels, **measure}, {HOSTILE: 1.0}),
        recorded_view(
            f"{HOSTILE}-2", {**labels, **measure}, state=ConditionType.FAILED, reason=HOSTILE
        ),
        recorded_view("broken-1", {"sweep": "broken", "sweep-goal": "x", "sweep-points": "-9"}),
    ]
    async with serve(make_site(home, RecordedJobs(views))) as client:
        _, listed = await client.ask("/sweeps")
        links = re.findall(r'href="(/sweeps/[^"]+)"', listed)
        assert len(links) == 2
        for link in (*links, f"{links[0]}?metric=%3Cimg%3E&goal=%22%3E"):
            status, text = await client.ask(link)
            assert status == 200
            assert "<img" not in text
            assert "\x1b" not in text
            assert "x" * (MAX_TEXT_LENGTH + 1) not in text
        assert "<img" not in listed
