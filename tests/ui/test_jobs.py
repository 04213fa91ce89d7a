"""The pages of jobs: the table, one job, its logs and actions, live."""

from __future__ import annotations

import json
import os
import signal
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.training.types import RestartPolicy
from danlu.ui.export import export_job
from danlu.ui.pages.compare import split_options
from tests.jobs.local.support import runs, spec, submission, supervisor_of, wait_for_view
from tests.ui.site import act_on, make_site, read_lines, serve, wait_for_part

pytestmark = pytest.mark.anyio


async def submit(jobs: LocalJobs, work: Path, script: str, name: str = "job", **more: Any) -> None:
    await jobs.submit(submission(work, spec(script, **more), name=name))


async def finish(jobs: LocalJobs, work: Path, script: str, name: str = "job", **more: Any) -> None:
    await submit(jobs, work, script, name, **more)
    await jobs.result(name)


async def test_new_job_appears_on_an_open_page(home: Path, jobs: LocalJobs, work: Path) -> None:
    async with (
        serve(make_site(home, jobs)) as client,
        aclosing(client.events("/-/live/")) as events,
    ):
        first = await anext(events)
        assert "danlu train starts one" in first.data["table"]
        await submit(jobs, work, "sleep 600", replicas=2)
        async for event in events:
            if "Running" in event.data.get("table", ""):
                break
        assert ">job</a>" in event.data["table"]
        assert "0/2" in event.data["table"]
        await jobs.stop("job", grace=0)


async def test_filters_are_those_of_the_address(home: Path, jobs: LocalJobs, work: Path) -> None:
    await finish(jobs, work, "true", "good")
    await finish(jobs, work, "exit 3", "bad")
    async with serve(make_site(home, jobs)) as client:
        _, text = await client.ask("/")
        assert text.index("/jobs/bad") < text.index("/jobs/good")
        assert "worker-0 failed first: exit code 3" in text
        for query, name in (("state=Failed", "bad"), ("q=OO", "good")):
            _, text = await client.ask(f"/?{query}")
            assert f"/jobs/{name}" in text
            assert text.count("data-key") == 1
        _, text = await client.ask("/?framework=mpi")
        assert "No job matches" in text


async def test_job_that_does_not_exist_is_named(home: Path, jobs: LocalJobs) -> None:
    async with serve(make_site(home, jobs)) as client:
        status, text = await client.ask("/jobs/none")
        assert status == 404
        assert "job &#x27;none&#x27; not found" in text or "job 'none' not found" in text


async def test_actions_do_what_the_commands_do(home: Path, jobs: LocalJobs, work: Path) -> None:
    await submit(jobs, work, "sleep 600")
    await wait_for_view(jobs, runs(1))

    async with serve(make_site(home, jobs)) as client:
        act = partial(act_on, client, "job")
        assert await act("suspend") == (200, "suspended job")
        await wait_for_part(client, "/jobs/job", "head", "Resume")
        assert await act("resume") == (200, "resumed job")
        await wait_for_view(jobs, runs(1))
        assert await act("remove") == (409, "job job is still running")
        assert await act("explode") == (409, "unknown action explode")
        status, message = await act("stop")
        assert status == 200
        assert message.startswith("stopped job")
        assert (await jobs.view("job")).finished
        assert await act("remove") == (200, "removed job")
        assert await jobs.names() == []


async def test_stream_has_each_line_once_across_restarts_of_the_server(
    home: Path, jobs: LocalJobs, work: Path
) -> None:
    script = (
        'i=0; while [ $i -lt 300 ]; do echo "line $i of $RANK"; i=$((i+1));'
        " [ $((i % 50)) = 0 ] && sleep 0.05; done; true"
    )
    await submit(jobs, work, script, replicas=2)
    seen: list[list[Any]] = []
    last, port = "", 0
    for _ in range(3):
        async with (
            serve(make_site(home, jobs), port=port) as client,
            aclosing(client.events("/-/logs/job/stream", last=last)) as events,
        ):
            port = client.port
            event = await anext(events)
            if event.name == "lines":
                assert event.data["first"] == len(seen)
                seen += event.data["lines"]
                last = event.id
    async with serve(make_site(home, jobs), port=port) as client:
        seen += await read_lines(client, "job", last=last)
    for index in range(2):
        written = [line.data async for line in jobs.logs("job") if line.replica.index == index]
        shown = [text for source, _, _, text, _ in seen if source == f"worker-{index}"]
        assert "\n".join(shown).encode() == b"\n".join(written)
        assert len(shown) == 300


async def test_stream_begins_again_with_another_job_of_the_name(
    home: Path, jobs: LocalJobs, work: Path
) -> None:
    await finish(jobs, work, "seq 1 10")
    async with serve(make_site(home, jobs)) as client:
        async with aclosing(client.events("/-/logs/job/stream")) as events:
            before = [event async for event in events if event.name == "lines"][-1]
        assert before.data["end"] == 10
        await jobs.remove("job")
        await finish(jobs, work, "seq 1001 1100")
        lines = await read_lines(client, "job", last=before.id)
    assert [line[3] for line in lines] == [str(number) for number in range(1001, 1101)]


async def test_window_search_and_first_failure_use_the_same_indexes(
    home: Path, jobs: LocalJobs, work: Path
) -> None:
    failing = "Traceback (most recent call last):\\nValueError: no data"
    await finish(jobs, work, f"seq 1 3000; printf '{failing}\\n'; exit 1")
    async with serve(make_site(home, jobs)) as client:

        async def ask(path: str) -> Any:
            return json.loads((await client.ask(f"/-/logs/job/{path}"))[1])

        window = await ask("lines?first=1500&count=3")
        assert [line[3] for line in window["lines"]] == ["1501", "1502", "1503"]
        assert (window["first"], window["begin"], window["end"]) == (1500, 0, 3002)
        assert (await ask("find?text=2999&first=0"))["index"] == 2998
        # Searching goes on at the top.
        assert (await ask("find?text=2999&first=2999"))["index"] == 2998
        assert (await ask("find?text=nothing"))["index"] is None
        assert (await ask("failure"))["index"] == 3000
        assert (await client.ask("/-/logs/job/lines?first=x"))[0] == 400
        assert (await client.ask("/-/logs/none/lines"))[0] == 409


async def test_markup_and_escape_sequences_of_a_job_are_harmless(
    home: Path, jobs: LocalJobs, work: Path
) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    script = f"printf '%s\\033[31mred\\033]0;title\\007\\n' '{hostile}'; head -c 100000 /dev/zero"
    await finish(jobs, work, f"{script} | tr '\\0' x; echo; exit 1")
    async with serve(make_site(home, jobs)) as client:
        lines = await read_lines(client, "job")
        assert lines[0][3] == f"{hostile}red"
        assert max(len(line[3]) for line in lines) <= 2000
        _, text = await client.ask("/jobs/job")
        assert "<img" not in text
        assert "\x1b" not in text


async def test_finished_job_runs_again_as_it_was_submitted(
    home: Path, jobs: LocalJobs, work: Path
) -> None:
    files = work / "files"
    files.mkdir()
    (files / "data").write_text("sent with the job")
    await jobs.submit(submission(work, spec("cat $DANLU_FILES/data"), files=files))
    await jobs.result("job")
    (files / "data").write_text("changed since")
    async with serve(make_site(home, jobs)) as client:
        assert await act_on(client, "job", "rerun") == (200, "started job again")
        await jobs.result("job")
        assert [line[3] for line in await read_lines(client, "job")] == ["sent with the job"]
        assert "/jobs/job@1" in (await client.ask("/jobs/job"))[1]
        assert (await client.ask("/jobs/job@1"))[0] == 200


async def test_timeline_has_a_bar_for_each_attempt(home: Path, jobs: LocalJobs, work: Path) -> None:
    script = "echo begin; [ -e again ] && exit 0; touch again; sleep 0.2; echo end; exit 130"
    await finish(jobs, work, script, policy=RestartPolicy.EXIT_CODE)
    async with serve(make_site(home, jobs)) as client:
        _, text = await client.ask("/jobs/job")
    assert text.count("<rect") == 2
    assert "worker-0, attempt 0: restarted after" in text
    assert "worker-0, attempt 1: Succeeded after" in text
    assert "worker-0 ↻1" in text


async def test_comparison_shows_what_differs(home: Path, jobs: LocalJobs, work: Path) -> None:
    for name, rate in (("first", "0.1"), ("second", "0.2")):
        await jobs.submit(
            submission(work, spec(f"true --rate {rate}"), name=name, labels={"sweep.rate": rate})
        )
        await jobs.result(name)
    async with serve(make_site(home, jobs)) as client:
        _, text = await client.ask("/compare?jobs=first,second")
        table = text[text.index("Parameters that differ") :]
        assert "true --rate 0.1" in table
        assert ">rate<" in table
        assert "framework" not in table
        status, text = await client.ask("/compare?jobs=first")
        assert (status, "choose from 2 to 8 jobs" in text) == (404, True)


def test_options_of_a_command_are_parameters() -> None:
    words = ["python", "train.py", "--rate", "0.1", "--deep", "--size=3", "data"]
    assert split_options(words) == {
        "argument 0": "python",
        "argument 1": "train.py",
        "--rate": "0.1",
        "--deep": "",
        "--size": "3",
        "argument 2": "data",
    }


async def test_export_is_one_file_without_scripts_and_secrets(
    home: Path, jobs: LocalJobs, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "do-not-tell-anyone")
    await finish(jobs, work, "echo '<script>x</script>'; echo do-not-tell-anyone; exit 3")
    html = await export_job(make_site(home, jobs), "job")
    assert "worker-0 │ &lt;script&gt;x&lt;/script&gt;" in html
    assert "worker-0 failed first" in html
    for wrong in ("<script", "src=", 'href="/static', "do-not-tell-anyone", "<button"):
        assert wrong not in html


async def test_job_whose_supervisor_died_is_lost_on_an_open_page(
    home: Path, jobs: LocalJobs, work: Path
) -> None:
    await submit(jobs, work, "sleep 600")
    await wait_for_view(jobs, runs(1))
    async with (
        serve(make_site(home, jobs)) as client,
        aclosing(client.events("/-/live/")) as events,
    ):
        assert "Running" in (await anext(events)).data["table"]
        os.kill(supervisor_of(home), signal.SIGKILL)
        async for event in events:
            if "Lost" in event.data.get("table", ""):
                break
        _, text = await client.ask("/jobs/job")
        assert "its supervisor died" in text
        assert "Run again" in text
