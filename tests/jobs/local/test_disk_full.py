"""A full disk under the state directory: logs degrade, the job continues and ends properly."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.errors import OutsideError
from danlu.jobs.local.job_directory import EventRecord, JobDirectory, utc_now
from danlu.jobs.local.log_files import LogReader, LogWriter, log_file, rotated_file
from tests.jobs.local.support import (
    local_jobs,
    runs,
    spec,
    submission,
    until,
    wait_for_view,
    worker,
)

pytestmark = pytest.mark.anyio

SPACE = "40m"


class FakeDisk:
    """Writes fail while it is ``full``, after ``room`` further bytes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.room = 0
        self.code = errno.ENOSPC
        self._write = os.write
        patch.setattr(os, "write", self.write)

    def write(self, descriptor: int, data: bytes) -> int:
        if self.full and len(data) > self.room:
            if not self.room:
                raise OSError(self.code, os.strerror(self.code))
            data, self.room = data[: self.room], 0
        return self._write(descriptor, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FakeDisk:
    return FakeDisk(monkeypatch)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    times = [0.0]
    monkeypatch.setattr("danlu.jobs.local.log_files._monotonic_time", lambda: times[0])
    return times


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    return LogWriter(log_file(tmp_path, worker(0)), limit=4096, keep=3)


def lines(directory: Path) -> list[str]:
    reader = LogReader(directory, worker(0))
    results = [line.data.decode() for line in reader.read(1 << 23)]
    reader.close()
    return results


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_lines_are_kept_while_the_disk_is_full_and_written_later(
    code: int, disk: FakeDisk, clock: list[float], writer: LogWriter, tmp_path: Path
) -> None:
    writer.write([b"before"], attempt=0)
    disk.full, disk.room, disk.code = True, 5, code
    writer.write([b"a", b"b"], attempt=0)
    assert writer.failure == os.strerror(code)
    # No half of a record is left.
    assert lines(tmp_path) == ["before"]
    disk.full = False
    writer.write([b"c"], attempt=0)
    assert lines(tmp_path) == ["before"]  # not tried again at once
    clock[0] = 2.0
    writer.write([b"d"], attempt=0)
    assert lines(tmp_path) == ["before", "a", "b", "c", "d"]
    assert (writer.lost, writer.failure) == (0, "")


def test_only_the_newest_lines_are_kept_and_lost_ones_are_counted(
    disk: FakeDisk, clock: list[float], writer: LogWriter, tmp_path: Path
) -> None:
    writer.write([b"before"], attempt=0)
    disk.full = True
    text = b"x" * 1000
    for index in range(3000):
        writer.write([b"%d %s" % (index, text)], attempt=0)
    assert writer.lost > 1500
    disk.full = False
    clock[0] = 2.0
    writer.flush()
    before, marker, *kept = lines(tmp_path)
    assert before == "before"
    assert marker == f"… {writer.lost:,} lines lost: disk full (No space left on device)"
    assert [int(line.split()[0]) for line in kept] == list(range(writer.lost, 3000))


def test_the_oldest_rotated_file_is_deleted_for_new_lines(
    disk: FakeDisk, writer: LogWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = log_file(tmp_path, worker(0))
    for index in range(30):
        writer.write([b"%d %s" % (index, b"y" * 500)], attempt=0)
    assert rotated_file(path, 3).exists()
    unlink = os.unlink

    def free(name: Path) -> None:
        unlink(name)
        disk.full = False

    monkeypatch.setattr(os, "unlink", free)
    disk.full = True
    writer.write([b"newest"], attempt=0)
    assert not rotated_file(path, 3).exists()
    assert lines(tmp_path)[-1] == "newest"
    assert writer.failure == ""


def test_other_errors_are_raised(disk: FakeDisk, writer: LogWriter) -> None:
    disk.full, disk.code = True, errno.EBADF
    with pytest.raises(OSError, match="Bad file descriptor"):
        writer.write([b"a"], attempt=0)


def test_an_event_is_appended_completely_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = JobDirectory(tmp_path)
    event = EventRecord(utc_now(), "Normal", "A", "a")
    directory.append_event(event)
    disk = FakeDisk(monkeypatch)
    disk.full, disk.room = True, 9
    with pytest.raises(OSError, match="No space left"):
        directory.append_event(event)
    assert directory.read_events() == (event,)


# -- a real full disk -----------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A danlu home on a separate file system that can be filled."""
    home = tmp_path / "small"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SPACE},mode=700", "danlu-test", str(home)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no right to mount a tmpfs")
    yield home
    subprocess.run(["umount", "-l", str(home)], check=True)


def fill(home: Path) -> Path:
    """Leave no byte of the file system free."""
    path = home / "filler"
    with open(path, "ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"z" * size)
            except OSError:
                continue
    return path


SCRIPT = """
while [ ! -e go ]; do sleep 0.02; done
i=0; while [ $i -lt 30000 ]; do echo "line $i of a training that writes much"; i=$((i+1)); done
touch written
while [ ! -e end ]; do sleep 0.02; done
echo done > shard
"""


async def test_a_job_continues_while_the_disk_is_full(
    small: Path, work: Path, tmp_path: Path
) -> None:
    jobs = local_jobs(small, ledger=str(tmp_path / "ledger.json"))
    await jobs.submit(submission(work, spec(SCRIPT)))
    await wait_for_view(jobs, runs(1))
    filler = fill(small)
    (work / "go").touch()
    await until((work / "written").exists)
    view = await wait_for_view(jobs, lambda view: bool(view.warnings))
    assert "is full (No space left on device): the job continues" in " ".join(view.warnings)
    with pytest.raises(OutsideError, match="cannot start job other: No space left on device"):
        await jobs.submit(submission(work, spec("true"), name="other"))
    assert await jobs.names() == ["job"]
    (work / "end").touch()
    result = (await jobs.result("job")).view
    assert result.state == "Succeeded"
    assert (work / "shard").read_text() == "done\n"
    assert [event.reason for event in await jobs.events("job")][-1] == "PyTorchJobSucceeded"
    (lost,) = [text for text in result.warnings if "lines of worker-0 were lost" in text]
    assert lost
    data = [line.data.decode() async for line in jobs.logs("job")]
    assert "lines lost: disk full" in " ".join(data)
    # The newest lines are those that were kept.
    assert data[-1] == "line 29999 of a training that writes much"
    filler.unlink()


async def test_the_end_of_a_job_is_written_when_a_full_disk_has_space_again(
    small: Path, work: Path, tmp_path: Path
) -> None:
    """If another program took the reserved space, the end is written when there is room again."""
    jobs = local_jobs(small, ledger=str(tmp_path / "ledger.json"))
    await jobs.submit(submission(work, spec("while [ ! -e end ]; do sleep 0.02; done")))
    await wait_for_view(jobs, runs(1))
    (small / "jobs/job/reserve").unlink()
    filler = fill(small)
    (work / "end").touch()
    pid = (await jobs.view("job")).replicas[0].pid
    await until(lambda: not Path(f"/proc/{pid}").exists())
    assert not (await jobs.view("job")).finished
    filler.unlink()
    assert (await jobs.result("job")).view.state == "Succeeded"
