"""The state of a running build and the texts about it, which every renderer shares.

The live tree of a terminal, plain lines and the notebook's view show the same build from this
model; none of them tracks vertices itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from danlu.graph.progress import (
    LAYER_BRANCH,
    Ended,
    Event,
    Finished,
    Log,
    Message,
    Started,
    Transfer,
)
from danlu.util.decoding import convert_value, decode_json
from danlu.util.human import format_duration, format_size
from danlu.util.sanitize import strip_control_sequences

#: The branches in the order in which a build walks them.
_BRANCH_ORDER = ("base", "system", "python", "config", "steps")

#: The words for the finished vertices of a branch, if they are not built.
_COUNT_WORDS = {LAYER_BRANCH: ("transferred", "existed")}

_MAX_LOG_LINES = 6

#: How many running vertices of a branch renderers show.
MAX_VERTICES_PER_BRANCH = 8

_EVENT_TYPES: dict[str, type[Event]] = {
    kind.__name__.lower(): kind for kind in (Started, Finished, Log, Transfer, Message)
}


class RunningVertex(msgspec.Struct):
    """A vertex that runs: its last log lines, and the bytes or units that it has transferred."""

    id: str
    name: str
    branch: str
    started: float
    current: int = 0
    total: int = 0
    unit: str = ""
    transfer_started: float = 0.0
    lines: deque[str] = msgspec.field(default_factory=lambda: deque(maxlen=_MAX_LOG_LINES))

    @property
    def transfer(self) -> str:
        """``3.1 MB of 30 MB`` or ``7 of 81 unpacked`` while a transfer runs, else empty."""
        if self.current >= self.total > 0:
            return ""  # the transfer is done, and something else still runs
        if self.unit:
            return f"{self.current} of {self.total} {self.unit}" if self.total else ""
        if self.total and not self.current:
            return format_size(self.total)  # of a wheel only the end is known
        if self.total:
            return f"{format_size(self.current)} of {format_size(self.total)}"
        return format_size(self.current) if self.current else ""


class BranchState(msgspec.Struct):
    """The vertices of one branch of the graph: counts of finished ones, and those that run."""

    name: str
    started: float
    built: int = 0
    cached: int = 0
    failed: int = 0
    size: int = 0
    seconds: float = 0.0
    running: dict[str, RunningVertex] = {}

    def elapsed_seconds(self, now: float) -> float:
        """Return the seconds from the first event to now, or to the last one if none runs."""
        return now - self.started if self.running else self.seconds

    @property
    def running_vertices(self) -> list[RunningVertex]:
        """The vertices that run: the largest transfers first, then those that started first."""

        def rank(vertex: RunningVertex) -> tuple[int, float]:
            return (-vertex.total if vertex.transfer and not vertex.unit else 0, vertex.started)

        return sorted(self.running.values(), key=rank)

    def describe_transfers(self, now: float) -> str:
        """Return ``340 MB of 2.9 GB, 12 MB/s`` if files of several vertices are downloaded."""
        found = [item for item in self.running.values() if item.total and not item.unit]
        current, total = sum(item.current for item in found), sum(item.total for item in found)
        if self.name == LAYER_BRANCH or len(found) < 2 or current == total:
            return ""
        seconds = now - min(item.transfer_started for item in found)
        rate = f", {format_size(int(current / seconds))}/s" if current and seconds >= 1 else ""
        return f"{format_size(current)} of {format_size(total)} downloaded{rate}"

    @property
    def counts(self) -> str:
        """``2 built, 30 cached, 12 MB``."""
        built, cached = _COUNT_WORDS.get(self.name, ("built", "cached"))
        parts = [
            f"{self.built} {built}" if self.built else "",
            f"{self.cached} {cached}" if self.cached else "",
            f"{self.failed} failed" if self.failed else "",
            format_size(self.size) if self.size else "",
        ]
        return ", ".join(filter(None, parts))


class BuildRow(msgspec.Struct, frozen=True):
    """A row about a branch, or, below it, about one of its running vertices.

    ``detail`` has the branch's counts or the vertex's transferred bytes; ``fraction`` is the part
    of the transfer that is done, None if unknown. ``lines`` are the last lines of the vertex's
    output. ``seconds`` is None if nothing of the branch was or is built.
    """

    name: str
    detail: str = ""
    seconds: float | None = None
    is_vertex: bool = False
    has_failed: bool = False
    fraction: float | None = None
    lines: tuple[str, ...] = ()


class BuildState:
    """The state of a build, updated by its events.

    Times are seconds since the first event by the renderer's clock: the times in events of
    resolving and of building have different origins.
    """

    def __init__(self) -> None:
        self.branches: dict[str, BranchState] = {}
        self.message = ""
        self._branch_of: dict[str, str] = {}

    @property
    def running(self) -> list[RunningVertex]:
        """All vertices that run."""
        return [vertex for branch in self.branches.values() for vertex in branch.running.values()]

    @property
    def active(self) -> bool:
        """Whether there is anything to show: a vertex runs, or dependencies are resolved."""
        return bool(self.running) or bool(self.message and not self.branches)

    def sorted_branches(self) -> list[BranchState]:
        """Return the branches in the order of a build."""
        return [self.branches[name] for name in sort_branches(self.branches)]

    def find_running(self, vertex: str) -> RunningVertex | None:
        """Return the vertex with this id if it runs."""
        branch = self.branches.get(self._branch_of.get(vertex, ""))
        return branch.running.get(vertex) if branch else None

    def rows(self, now: float) -> tuple[BuildRow, ...]:
        """Return the branches in the order of a build, each with its running vertices."""
        rows: list[BuildRow] = []
        for branch in self.sorted_branches():
            rows.append(_make_branch_row(branch, now))
            vertices = branch.running_vertices
            shown = vertices[:MAX_VERTICES_PER_BRANCH]
            rows += [_make_vertex_row(vertex, now) for vertex in shown]
            if len(vertices) > len(shown):
                name = f"… and {len(vertices) - len(shown)} more"
                rows.append(BuildRow(name, is_vertex=True))
        return tuple(rows)

    def handle(self, event: Event, now: float) -> None:
        """Update the state by an event received at ``now``."""
        match event:
            case Started():
                self.message = ""
                self._start_vertex(event.vertex, event.name, event.branch, now)
            case Finished():
                self._finish_vertex(event, now)
            case Log():
                running = self.find_running(event.vertex)
                if running is not None and event.line.strip():
                    running.lines.append(strip_control_sequences(event.line.expandtabs()))
            case Transfer():
                # A push after the build has no vertex: it is shown while it transfers.
                running = self.find_running(event.vertex) or self._start_vertex(
                    event.vertex, event.name, "", now
                )
                running.transfer_started = running.transfer_started or now
                running.current, running.total = event.current, event.total
                running.unit = event.unit
                self.message = ""
            case Message():
                self.message = strip_control_sequences(event.text)
            case Ended():
                pass

    def _start_vertex(self, vertex: str, name: str, branch: str, now: float) -> RunningVertex:
        state = self.branches.setdefault(branch, BranchState(branch, now))
        state.running[vertex] = RunningVertex(vertex, strip_control_sequences(name), branch, now)
        self._branch_of[vertex] = branch
        return state.running[vertex]

    def _finish_vertex(self, event: Finished, now: float) -> None:
        branch = self.branches.setdefault(event.branch, BranchState(event.branch, now))
        branch.running.pop(event.vertex, None)
        self._branch_of.pop(event.vertex, None)
        branch.seconds = max(branch.seconds, now - branch.started)
        if event.error:
            branch.failed += 1
        elif event.cached:
            branch.cached += 1
        else:
            branch.built += 1
            branch.size += event.size


def _make_branch_row(branch: BranchState, now: float) -> BuildRow:
    return BuildRow(
        strip_control_sequences(branch.name) or "image",
        ", ".join(filter(None, (branch.counts, branch.describe_transfers(now)))),
        branch.elapsed_seconds(now) if branch.built or branch.running else None,
        has_failed=branch.failed > 0,
    )


def _make_vertex_row(vertex: RunningVertex, now: float) -> BuildRow:
    return BuildRow(
        vertex.name,
        vertex.transfer,
        now - vertex.started,
        is_vertex=True,
        fraction=vertex.current / vertex.total if vertex.transfer and vertex.total else None,
        lines=tuple(vertex.lines),
    )


def sort_branches(names: Iterable[str]) -> list[str]:
    """Sort branches in the order of a build; unknown ones come last, in the order given."""
    rank = {name: index for index, name in enumerate(_BRANCH_ORDER)}
    return sorted(names, key=lambda name: rank.get(name, len(rank)))


def format_vertex(branch: str, name: str) -> str:
    """Return ``[python] numpy``."""
    return (
        f"[{strip_control_sequences(branch)}] {strip_control_sequences(name)}"
        if branch
        else strip_control_sequences(name)
    )


def format_finished(event: Finished) -> str:
    """Return ``[python] numpy 1.2 s, 30.1 MB``, ``… cached`` or ``… failed after 1.2 s: why``."""
    vertex = format_vertex(event.branch, event.name)
    if event.error:
        reason = strip_control_sequences((event.error.splitlines() or [""])[0])
        return f"{vertex} failed after {format_duration(event.seconds)}: {reason}"
    if event.cached:
        return f"{vertex} cached"
    size = f", {format_size(event.size)}" if event.size else ""
    return f"{vertex} {format_duration(event.seconds)}{size}"


def format_log_entry(event: Event) -> str | None:
    """Return the line of an event in the log file; None if the log leaves it out."""
    match event:
        case Started():
            return f"{format_vertex(event.branch, event.name)} started"
        case Finished():
            return format_finished(event)
        case Log():
            return f"{strip_control_sequences(event.name)} | {strip_control_sequences(event.line)}"
        case Message():
            return strip_control_sequences(event.text)
        case _:
            return None


def event_fields(event: Event) -> dict[str, object]:
    """Return an event as JSON: ``type`` (started, finished, log, transfer, message), its fields."""
    fields: dict[str, object] = {"type": type(event).__name__.lower()}
    fields.update(msgspec.structs.asdict(event))
    seconds = fields.get("time")
    if isinstance(seconds, float):
        fields["time"] = round(seconds, 3)
    return fields


def parse_event(line: str) -> Event | None:
    """Parse a line of ``--progress json``, which :func:`event_fields` made; None for any other."""
    try:
        fields = decode_json(line, dict[str, object])
        kind = _EVENT_TYPES[str(fields.pop("type"))]
        return convert_value(fields, kind)
    except (msgspec.MsgspecError, KeyError):
        return None
