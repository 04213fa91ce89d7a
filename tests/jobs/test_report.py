"""``danlu.report`` against the progress server, and where there is none."""

from __future__ import annotations

import asyncio
import os
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import danlu
from danlu.guest import report as guest
from danlu.jobs.local.progressserver import ProgressServer
from danlu.jobs.types import Progress
from danlu.training.progress import progress_of
from danlu.training.types import Job, ReplicaId, ReplicaType

LEADER = ReplicaId(ReplicaType("Worker"), 0)
PROGRAM = str(guest.__file__)


class Server:
    """Keeps what is posted with which token, and answers with ``codes`` in turn, then 200."""

    def __init__(self, directory: Path, codes: tuple[int, ...] = ()) -> None:
        self.posts: list[tuple[str, Progress]] = []
        self._codes = list(codes)
        self.token = directory / "token"
        self.token.write_text("first")
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                progress = progress_of(body)
                assert progress is not None
                outer.posts.append((self.headers["Authorization"], progress))
                self.send_response(outer._codes.pop(0) if outer._codes else 200)
                self.end_headers()

            def log_message(self, *words: Any) -> None: ...

        self.http = HTTPServer(("127.0.0.1", 0), Handler)

    @property
    def environment(self) -> dict[str, str]:
        address = f"http://127.0.0.1:{self.http.server_port}/status"
        return {guest.URL: address, guest.TOKEN: str(self.token)}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    made: list[tuple[Server, Thread]] = []

    def begin(*codes: int) -> Server:
        server = Server(tmp_path, codes)
        thread = Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        made.append((server, thread))
        return server

    yield begin
    for server, thread in made:
        server.http.shutdown()
        thread.join()
        server.http.server_close()


def program(text: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """What a program says that has ``report`` from the file alone, by any name."""
    head = f"import runpy; report = runpy.run_path({PROGRAM!r})['report']\n"
    plain = {name: value for name, value in os.environ.items() if "KUBEFLOW" not in name}
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", head + textwrap.dedent(text)],
        env={**plain, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_the_package_has_it() -> None:
    assert danlu.report is guest.report


def test_the_last_report_before_the_end_is_never_lost(serve: Callable[..., Server]) -> None:
    server = serve()
    text = "for step in range(1000): report(percentage=step / 10, loss=1000 - step)"
    done = program(text, server.environment)
    assert (done.returncode, done.stderr) == (0, "")
    # At once, and at the end: the program is over before a second one may be sent.
    assert 1 <= len(server.posts) <= 3
    last = server.posts[-1][1]
    assert (last.percentage, last.metrics) == (99, {"loss": 1.0})


def test_what_is_not_given_stays_as_it_was_told(serve: Callable[..., Server]) -> None:
    server = serve()
    text = "report(percentage=5, loss=2); report(seconds_left=7.9, accuracy=0.5); report(loss=1)"
    assert program(text, server.environment).stderr == ""
    last = server.posts[-1][1]
    assert (last.percentage, last.seconds_left) == (5, 7)
    assert last.metrics == {"loss": 1.0, "accuracy": 0.5}


def test_it_sends_while_the_program_goes_on_and_reads_the_token_again(
    serve: Callable[..., Server],
) -> None:
    server = serve()
    text = f"""
    import time
    report(loss=1)
    time.sleep(0.2)
    open({str(server.token)!r}, "w").write("second")
    report(loss=2)
    time.sleep({guest.NEAR} + 0.2)
    report(loss=3)
    """
    assert program(text, server.environment).stderr == ""
    told = [(token, progress.metrics["loss"]) for token, progress in server.posts]
    assert told == [("Bearer first", 1.0), ("Bearer second", 2.0), ("Bearer second", 3.0)]


def test_where_nobody_listens_it_does_nothing() -> None:
    done = program("report(loss=object()); import threading; print(threading.active_count())", {})
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        ("report(loss=object())", "loss is not a number"),
        ("report(loss='x' * 5)", "loss is not a number"),
        ("report(**{'x' * 65: 1})", "more than 64 letters"),
        ("report(percentage='half')", "percentage is not a number"),
    ],
)
def test_what_is_wrong_is_said_once_and_training_goes_on(
    serve: Callable[..., Server], call: str, complaint: str
) -> None:
    done = program(f"{call}; {call}; report(right=1); print('done')", serve().environment)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr.count("danlu.report:") == 1
    assert complaint in done.stderr


def test_numbers_out_of_range_are_brought_into_it(serve: Callable[..., Server]) -> None:
    server = serve()
    done = program(
        "report(percentage=250, seconds_left=-1, nothing=float('nan'))", server.environment
    )
    assert done.stderr == ""
    last = server.posts[-1][1]
    assert (last.percentage, last.seconds_left, last.metrics) == (100, 0, {})


def test_a_server_that_is_gone_holds_nobody_up(serve: Callable[..., Server]) -> None:
    environment = {**serve().environment, guest.URL: "http://127.0.0.1:1/status"}
    done = program("report(loss=1); report(loss=2); print('done')", environment)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr.count("danlu.report: not told") == 1


def test_what_failed_is_sent_once_more_and_what_was_refused_is_not(
    serve: Callable[..., Server],
) -> None:
    server = serve(503, 403)
    done = program("import time; report(loss=1); time.sleep(0.2)", server.environment)
    # The first failed, the one at the end was refused.
    assert len(server.posts) == 2
    assert "503" in done.stderr
    assert "refused: 403" in done.stderr


def test_a_process_that_was_forked_tells_its_own(serve: Callable[..., Server]) -> None:
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


def test_it_does_not_need_the_package(tmp_path: Path) -> None:
    found = runpy.run_path(PROGRAM)["report"]
    found(loss=1)


Body = Callable[[ProgressServer, list[Progress]], Coroutine[Any, Any, None]]


@pytest.mark.needs("openssl")
def test_the_progress_server_understands_it_over_tls(tmp_path: Path) -> None:
    reports: list[Progress] = []

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
            done = await asyncio.to_thread(program, "report(percentage=7, loss=0.5)", environment)
            assert done.stderr == ""

    asyncio.run(run())
    assert [(one.percentage, one.metrics) for one in reports][-1] == (7, {"loss": 0.5})
