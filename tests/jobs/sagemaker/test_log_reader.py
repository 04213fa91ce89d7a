"""The lines of a training job: each once and in order, whatever CloudWatch's pages are like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st

from danlu.jobs.sagemaker.log_reader import JobLogReader
from danlu.jobs.types import MAX_LINE_BYTES, LogLine
from danlu.training.types import ReplicaId, ReplicaType

HOSTS = {f"algo-{number + 1}": ReplicaId(ReplicaType("Worker"), number) for number in range(3)}


class FakeLogs:
    """Streams of events; a page has at most ``page`` of them, and may be empty before the end."""

    def __init__(self, page: int = 2) -> None:
        self.streams: dict[str, list[dict[str, Any]]] = {}
        self.page = page
        self.requests: list[str] = []

    def write(self, stream: str, *messages: str, at: int = 0) -> None:
        events = self.streams.setdefault(stream, [])
        for message in messages:
            events.append({"timestamp": at or len(events), "message": message})

    async def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        self.requests.append(operation)
        if operation == "describe_log_streams":
            names = sorted(
                name for name in self.streams if name.startswith(parameters["logStreamNamePrefix"])
            )
            start = int(parameters.get("nextToken", 0))
            found = [
                {"logStreamName": name, "creationTime": position}
                for position, name in enumerate(names)
            ]
            more = {"nextToken": str(start + 2)} if start + 2 < len(found) else {}
            return {"logStreams": found[start : start + 2], **more}
        events = self.streams[parameters["logStreamName"]]
        token = parameters.get("nextToken", "")
        start, empty = (int(part) for part in (token or "0,0").split(","))
        if not empty and start < len(events):
            return {"events": [], "nextForwardToken": f"{start},1"}
        following = events[start : start + self.page]
        if not following:
            return {"events": [], "nextForwardToken": token or "0,0"}
        return {"events": following, "nextForwardToken": f"{start + len(following)},0"}


def read(
    logs: FakeLogs,
    *,
    follow: bool = False,
    tail: int | None = None,
    replicas: Sequence[ReplicaId] = (),
    steps: Sequence[Any] = (),
) -> list[LogLine]:
    """Return the lines; each step is called when the reader asks whether the job is finished."""
    pending = list(steps)

    async def is_finished() -> bool:
        if pending:
            pending.pop(0)()
            return False
        return True

    async def collect() -> list[LogLine]:
        reader = JobLogReader(logs.call, "demo", HOSTS)
        lines = reader.read(
            replicas, follow=follow, tail=tail, is_finished=is_finished, interval=0.0
        )
        return [line async for line in lines]

    return anyio.run(collect)


def texts(lines: Sequence[LogLine]) -> list[str]:
    return [f"{line.replica} {line.attempt} {line.data.decode()}" for line in lines]


def test_hosts_are_replicas_and_other_streams_are_not_read() -> None:
    logs = FakeLogs()
    logs.write("demo/algo-1-17", "a")
    logs.write("demo/algo-2-17", "b")
    for name in ("demo/algo-9-17", "demo/algo-1-x", "demo/other", "demo-2/algo-1-17"):
        logs.write(name, "foreign")
    assert sorted(texts(read(logs))) == ["worker-0 0 a", "worker-1 0 b"]
    assert texts(read(logs, replicas=[HOSTS["algo-2"]])) == ["worker-1 0 b"]


def test_lines_that_arrive_late_are_read_once() -> None:
    logs = FakeLogs()
    logs.write("demo/algo-1-17", "1", "2", "3")
    steps = [
        lambda: logs.write("demo/algo-1-17", "4"),
        lambda: None,
        lambda: logs.write("demo/algo-2-17", "x"),
        lambda: logs.write("demo/algo-1-17", "5", "6", "7"),
    ]
    found = texts(read(logs, follow=True, steps=steps))
    assert [text for text in found if "worker-0" in text] == [
        f"worker-0 0 {number}" for number in range(1, 8)
    ]
    assert found.count("worker-1 0 x") == 1


def test_a_restarted_job_has_further_attempts() -> None:
    logs = FakeLogs()
    logs.write("demo/algo-1-17", "first", at=1)
    logs.write("demo/algo-1-18", "second", at=2)
    lines = read(logs)
    assert texts(lines) == ["worker-0 0 first", "worker-0 1 second"]
    assert [line.number for line in lines] == [0, 1]


def test_the_tail_is_per_replica_and_the_rest_follows() -> None:
    logs = FakeLogs()
    logs.write("demo/algo-1-17", *"abc")
    logs.write("demo/algo-2-17", *"xy")
    steps = [lambda: logs.write("demo/algo-1-17", "d")]
    found = texts(read(logs, follow=True, tail=1, steps=steps))
    assert found == ["worker-1 0 y", "worker-0 0 c", "worker-0 0 d"]
    assert texts(read(logs, tail=0)) == []


def test_long_lines_are_cut_and_inner_newlines_end_lines() -> None:
    logs = FakeLogs()
    logs.write("demo/algo-1-17", "x" * (MAX_LINE_BYTES + 1), "a\nb\n", "")
    lines = read(logs)
    assert [(len(line.data), line.whole) for line in lines] == [
        (MAX_LINE_BYTES, False),
        *((1, True),) * 3,
        (0, True),
    ]
    assert lines[0].continues


def test_a_group_that_does_not_exist_yet_is_empty() -> None:
    assert read(FakeLogs(), follow=True) == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=30), st.integers(1, 4))
def test_the_order_of_a_host_is_kept_whatever_the_times(
    events: list[tuple[int, int]], page: int
) -> None:
    logs = FakeLogs(page)
    for position, (host, time) in enumerate(events):
        logs.write(f"demo/algo-{host + 1}-17", str(position), at=time)
    lines = read(logs)
    for host in range(3):
        own = [int(line.data) for line in lines if line.replica.index == host]
        assert own == [position for position, (each, _) in enumerate(events) if each == host]
