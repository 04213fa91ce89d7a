"""The same pages for the jobs of a cluster, fake and real."""

from __future__ import annotations

import json
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.kubernetes.pod_script import PodScript
from tests.jobs.kubernetes.conftest import real_jobs, site
from tests.jobs.kubernetes.support import JobNamespace, job, running, wait_for_view
from tests.ui.site import act_on, make_site, read_lines, serve, wait_for_part

__all__ = ["real_jobs", "site"]

pytestmark = pytest.mark.anyio


async def test_jobs_appear_and_are_stopped(site: JobNamespace, home: Path) -> None:
    async with serve(make_site(home, site.jobs, where="kubernetes")) as client:
        await site.jobs.submit(job(workers=2))
        table = await wait_for_part(client, "/", "table", "Running")
        # The name that it has if another kind has a job of this name.
        assert (await client.ask("/jobs/pytorchjob%2Fjob"))[0] == 200
        assert ">job</a>" in table
        await wait_for_part(client, "/jobs/job", "replicas", "Running")
        act = partial(act_on, client, "job")
        assert await act("suspend") == (200, "suspended job")
        await wait_for_part(client, "/jobs/job", "head", "Resume")
        assert await act("resume") == (200, "resumed job")
        await wait_for_view(site, running(2))
        assert (await act("remove"))[0] == 409
        status, message = await act("stop")
        assert (status, message) == (200, "stopped job")
        assert (await act("rerun"))[0] == 409
        assert await act("remove") == (200, "removed job")


async def test_log_goes_on_where_it_was_after_a_restart_of_the_server(
    site: JobNamespace, home: Path
) -> None:
    await site.jobs.submit(job(workers=2))
    await wait_for_view(site, running(2))
    seen: list[list[Any]] = []
    last = ""
    for turn in range(3):
        for index in range(2):
            site.write(f"job-worker-{index}", f"{turn} of {index}\nmore {turn} of {index}\n")
        async with (
            serve(make_site(home, site.jobs, where="kubernetes")) as client,
            aclosing(client.events("/-/logs/job/stream", last=last)) as events,
        ):
            async for event in events:
                assert event.data["first"] == len(seen)
                seen += event.data["lines"]
                last = event.id
                if len(seen) == 4 * (turn + 1):
                    break
    for index in range(2):
        texts = [text for source, _, _, text, _ in seen if source == f"worker-{index}"]
        wanted = [f"{more}{turn} of {index}" for turn in range(3) for more in ("", "more ")]
        assert texts == wanted


async def test_windows_search_and_first_failure_of_a_finished_job(
    site: JobNamespace, home: Path
) -> None:
    lines = [f"line {number}" for number in range(500)]
    failing = ["Traceback (most recent call last):", "ValueError: <script>alert(1)</script>"]
    log = "".join(f"{line}\n" for line in [*lines, *failing])
    site.behave(PodScript(run=0.0, exit_code=1, log=log))
    await site.jobs.submit(job())
    await wait_for_view(site, lambda view: view.finished)
    async with serve(make_site(home, site.jobs, where="kubernetes")) as client:
        shown = [line[3] for line in await read_lines(client, "job")]
        assert shown == [*lines, *failing]

        async def ask(path: str) -> Any:
            return json.loads((await client.ask(f"/-/logs/job/{path}"))[1])

        window = await ask("lines?first=250&count=2")
        assert [line[3] for line in window["lines"]] == ["line 250", "line 251"]
        assert (await ask("find?text=LINE%20499"))["index"] == 499
        assert (await ask("failure"))["index"] == 500
        head = await wait_for_part(client, "/jobs/job", "head", "failed first")
        assert "ValueError: &lt;script&gt;" in head
