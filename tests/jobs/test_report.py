"""``danlu.report`` with and without a progress server."""

from __future__ import annotations

import asyncio
import os
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import danlu
from danlu.jobs.local.progress_server import ProgressServer
from danlu.replica_runtime import report as guest
from danlu.training.progress import TrainingProgress, parse_progress
from danlu.training.types import Job, ReplicaId, ReplicaType

LEADER = ReplicaId(ReplicaType("Worker"), 0)
PROGRAM = str(guest.__file__)
#: What every program begins with.
HEAD = f"""
import os, runpy, time
report = runpy.run_path({PROGRAM!r})["report"]
def wait_for_posts(count):
    while not os.path.exists(os.path.join(os.environ["POSTS"], f"post-{{count}}")):
        time.sleep(0.01)
"""


class ReportServer:
    """Records requests and their tokens; answers with ``codes`` in turn, then 200.

    The programs can wait for each answered request (``wait_for_posts``).
    """

    def __init__(self, directory: Path, codes: tuple[int, ...] = ()) -> None:
        self.posts: list[tuple[str, TrainingProgress]] = []
        self._codes = list(codes)
        self._directory = directory
        self.token = directory / "token"
        self.token.write_text("first")
        outer = self

        class PostHandler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                progress = parse_progress(body)
                assert progress is not None
                outer.posts.append((self.headers["Authorization"], progress))
                self.send_response(outer._codes.pop(0) if outer._codes else 200)
                self.end_headers()
                (outer._directory / f"post-{len(outer.posts)}").touch()

            def log_message(self, *words: Any) -> None: ...

        self.http = HTTPServer(("127.0.0.1", 0), PostHandler)

    @property
    def environment(self) -> dict[str, str]:
        address = f"http://127.0.0.1:{self.http.server_port}/status"
        return {guest.URL: address, guest.TOKEN: str(self.token), "POSTS": str(self._directory)}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ReportServer]]:
    results: list[tuple[ReportServer, Thread]] = []

    def begin(*codes: int) -> ReportServer:
        server = ReportServer(tmp_path, codes)
        thread = Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        results.append((server, thread))
        return server

    yield begin
    for server, thread in results:
        server.http.shutdown()
        thread.join()
        server.http.server_close()


def program(text: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program that imports ``report`` as a single file; return its output."""
    plain = {name: value for name, value in os.environ.items() if "KUBEFLOW" not in name}
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", HEAD + textwrap.dedent(text)],
        env={**plain, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_report_is_part_of_the_package() -> None:
    assert danlu.report is guest.report


def test_the_last_report_is_never_lost(serve: Callable[..., ReportServer]) -> None:
    server = serve()
    text = "for step in range(1000): report(percentage=step / 10, loss=1000 - step)"
    result = program(text, server.environment)
    assert (result.returncode, result.stderr) == (0, "")
    # At once, and at the end: the program is over before a second one may be sent.
    assert 1 <= len(server.posts) <= 3
    last = server.posts[-1][1]
    assert (last.percentage, last.metrics) == (99, {"loss": 1.0})


def points_of(server: ReportServer, name: str) -> list[float]:
    return [value for _, progress in server.posts for _, value in progress.history.get(name, ())]


def test_frequent_reports_are_not_lost(serve: Callable[..., ReportServer]) -> None:
    server = serve()
    text = "for epoch in range(15): report(loss=15 - epoch, accuracy=epoch)"
    assert program(text, server.environment).stderr == ""
    assert points_of(server, "loss") == [float(15 - epoch) for epoch in range(15)]
    assert points_of(server, "accuracy") == [float(epoch) for epoch in range(15)]
    times = [at for _, progress in server.posts for at, _ in progress.history["loss"]]
    assert len(set(times)) == 15


def test_many_reports_are_thinned_by_their_extremes(serve: Callable[..., ReportServer]) -> None:
    server = serve()
    text = """
    for step in range(5_000):
        spike = {1_700: 9, 3_300: -9}.get(step, 0)
        report(metric0=spike, **{f"metric{n}": 0 for n in range(1, 40)})
    """
    assert program(text, server.environment).stderr == ""
    values = points_of(server, "metric0")
    assert (max(values), min(values)) == (9.0, -9.0)
    assert len(values) < 2000


def test_points_of_a_post_that_failed_are_sent_with_the_next(
    serve: Callable[..., ReportServer],
) -> None:
    server = serve(503)
    text = "report(loss=1); wait_for_posts(1); report(loss=2)"
    program(text, server.environment)
    assert [value for _, value in server.posts[-1][1].history["loss"]] == [1.0, 2.0]


def test_points_are_merged_once_and_thinned_by_their_extremes() -> None:
    first = {"loss": tuple((float(step), float(step % 7)) for step in range(100))}
    whole = guest.merge_points({}, first)
    assert guest.merge_points(whole, first) == whole
    more = {"loss": tuple((100.0 + step, 50.0 if step == 33 else 1.0) for step in range(600))}
    result = guest.merge_points(whole, more, 128)["loss"]
    assert len(result) <= 64
    assert (result[0], result[-1]) == ((0.0, 0.0), (699.0, 1.0))
    assert (133.0, 50.0) in result
    assert list(result) == sorted(result)
    lines = {str(number): ((0.0, 0.0),) for number in range(50)}
    assert len(guest.merge_points({}, lines)) == guest.MAX_SERIES


def test_a_curve_that_grows_keeps_its_shape_and_its_extremes() -> None:
    grown: dict[str, tuple[tuple[float, float], ...]] = {}
    for start in range(0, 100_000, 500):
        more = tuple((float(step), 1 - step / 100_000) for step in range(start, start + 500))
        if start == 3000:
            more = (*more[:100], (3100.0, 9.0), (3101.0, -9.0), *more[102:])
        grown = guest.merge_points(grown, {"loss": more})
    points = grown["loss"]
    assert len(points) <= guest.MAX_POINTS
    assert (max(value for _, value in points), min(value for _, value in points)) == (9.0, -9.0)
    gaps = [after[0] - before[0] for before, after in pairwise(points)]
    assert max(gaps) < 100_000 / 50


def test_omitted_fields_keep_their_values(serve: Callable[..., ReportServer]) -> None:
    server = serve()
    text = "report(percentage=5, loss=2); report(seconds_left=7.9, accuracy=0.5); report(loss=1)"
    assert program(text, server.environment).stderr == ""
    last = server.posts[-1][1]
    assert (last.percentage, last.seconds_left) == (5, 7)
    assert last.metrics == {"loss": 1.0, "accuracy": 0.5}


def test_reports_are_sent_in_the_background_with_the_current_token(
    serve: Callable[..., ReportServer],
) -> None:
    server = serve()
    text = f"""
    report(loss=1)
    wait_for_posts(1)
    open({str(server.token)!r}, "w").write("second")
    report(loss=2)
    wait_for_posts(2)
    report(loss=3)
    """
    assert program(text, server.environment).stderr == ""
    output = [(token, progress.metrics["loss"]) for token, progress in server.posts]
    assert output == [("Bearer first", 1.0), ("Bearer second", 2.0), ("Bearer second", 3.0)]


def test_without_a_server_reporting_does_nothing() -> None:
    result = program("report(loss=object()); import threading; print(threading.active_count())", {})
    assert (result.returncode, result.stdout, result.stderr) == (0, "1\n", "")


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        ("report(loss=object())", "loss is not a number"),
        ("report(loss='x' * 5)", "loss is not a number"),
        ("report(**{'x' * 65: 1})", "longer than 64 characters"),
        ("report(percentage='half')", "percentage is not a number"),
    ],
)
def test_a_wrong_report_warns_once_and_training_continues(
    serve: Callable[..., ReportServer], call: str, complaint: str
) -> None:
    result = program(f"{call}; {call}; report(right=1); print('done')", serve().environment)
    assert (result.returncode, result.stdout) == (0, "done\n")
    assert result.stderr.count("danlu.report:") == 1
    assert complaint in result.stderr


def test_numbers_out_of_range_are_clamped(serve: Callable[..., ReportServer]) -> None:
    server = serve()
    result = program(
        "report(percentage=250, seconds_left=-1, nothing=float('nan'))", server.environment
    )
    assert result.stderr == ""
    last = server.posts[-1][1]
    assert (last.percentage, last.seconds_left, last.metrics) == (100, 0, {})


def test_an_unreachable_server_does_not_block(serve: Callable[..., ReportServer]) -> None:
    environment = {**serve().environment, guest.URL: "http://127.0.0.1:1/status"}
    result = program("report(loss=1); report(loss=2); print('done')", environment)
    assert (result.returncode, result.stdout) == (0, "done\n")
    assert result.stderr.count("danlu.report: cannot send the report") == 1


def test_failed_posts_are_retried_and_rejected_ones_are_not(
    serve: Callable[..., ReportServer],
) -> None:
    server = serve(503, 403)
    result = program("report(loss=1); wait_for_posts(1)", server.environment)
    # The first failed, the one at the end was refused.
    assert len(server.posts) == 2
    assert "503" in result.stderr
    assert "rejected the report: 403" in result.stderr


def test_a_forked_process_reports_for_itself(serve: Callable[..., ReportServer]) -> None:
    server = serve()
    text = """
    import multiprocessing
    def child(): report(loss=2); report(loss=3)
    report(loss=1)
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start(); process.join()
    """
    assert program(text, server.environment).stderr == ""
    losses = [progress.metrics["loss"] for _, progress in server.posts]
    assert losses.count(1.0) == 1
    assert 3.0 in losses


def test_report_works_without_the_package(tmp_path: Path) -> None:
    result = runpy.run_path(PROGRAM)["report"]
    result(loss=1)


Body = Callable[[ProgressServer, list[TrainingProgress]], Coroutine[Any, Any, None]]


@pytest.mark.needs("openssl")
def test_the_progress_server_accepts_reports_over_tls(tmp_path: Path) -> None:
    reports: list[TrainingProgress] = []

    async def run() -> None:
        server = ProgressServer(
            reports.append,
            job=Job(kind="PyTorchJob", name="mnist", replicas={}),
            leader=LEADER,
            directory=tmp_path / "progress",
            certificates=tmp_path / "certificates",
        )
        async with server:
            environment = server.environment(LEADER)
            assert environment[guest.URL].startswith("https:")
            result = await asyncio.to_thread(program, "report(percentage=7, loss=0.5)", environment)
            assert result.stderr == ""

    asyncio.run(run())
    assert [(report.percentage, report.metrics) for report in reports][-1] == (7, {"loss": 0.5})
