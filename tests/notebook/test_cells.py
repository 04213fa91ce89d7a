"""Cells that run as jobs, in real processes of this Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest

from danlu.errors import UsageError
from danlu.notebook import background, cells
from danlu.notebook.failure import CellFailed
from danlu.notebook.grammar import read_cell, read_options
from tests.notebook.desks import Seen, TestDesk
from tests.notebook.interrupts import interrupted, until

#: A loop that no end comes to, and that says where it is.
ENDLESS = """
import os, pathlib, time
pathlib.Path(f"{os.getpid()}.pid").touch()
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestDesk]:
    monkeypatch.chdir(tmp_path)
    yield TestDesk(tmp_path)
    until(lambda: not background.is_ending(), limit=15)


def run(desk: TestDesk, options: str, code: str) -> None:
    cells.run(read_options(f"--framework pytorch {options}", code), desk)


def alive(place: Path) -> set[int]:
    """The processes that said they run, and do."""
    pids = {int(one.stem) for one in place.glob("*.pid")}
    return {pid for pid in pids if os.path.exists(f"/proc/{pid}/cmdline")}


def state_of(desk: TestDesk, name: str) -> str:
    return anyio.run(desk.jobs().view, name).state


def test_a_cell_gets_variables_and_gives_them_back(desk: TestDesk) -> None:
    desk.names["x"] = [1, 2]
    run(desk, "--worker 2 --send x --return y,rank", "import os\nrank=os.environ['RANK']\ny=x*2\n")
    assert desk.names["y"] == [1, 2, 1, 2]
    assert desk.names["rank"] == "0"
    assert desk.seen.phases == ["Preparing", "Submitting", "Pending"]
    ((state, words),) = desk.seen.ends
    assert state == "Succeeded"
    assert " succeeded in " in words


def test_a_cell_in_ciaos_words_runs_as_it_is_written(desk: TestDesk) -> None:
    cell = read_cell("%framework=pytorch\n%worker=2\n\nprint('ciao')\n")
    assert cell is not None
    cells.run(cell, desk)
    assert sorted(desk.seen.lines) == ["worker-0 │ ciao", "worker-1 │ ciao"]


def test_values_of_every_replica_come_by_its_name(desk: TestDesk) -> None:
    code = "import os\nrank = int(os.environ['RANK'])\n"
    run(desk, "--worker 2 --return rank --every", code)
    assert desk.names["rank"] == {"worker-0": 0, "worker-1": 1}


def test_a_failed_job_fails_the_cell_and_sets_nothing(desk: TestDesk) -> None:
    with pytest.raises(CellFailed) as raised:
        run(desk, "--return y", "y = 1\nraise LookupError('no way')\n")
    assert raised.value.line == 3
    assert isinstance(raised.value.__cause__, LookupError)
    assert "y" not in desk.names
    ((state, words),) = desk.seen.ends
    assert state == "Failed"
    assert "LookupError: no way (line 3 of the cell)" in words


def test_wrong_code_is_refused_before_anything_is_submitted(desk: TestDesk) -> None:
    with pytest.raises(UsageError, match="line 2 of the cell is no Python") as caught:
        run(desk, "--worker 2", "if True\n    pass\n")
    assert caught.value.details[-1] == "SyntaxError: expected ':'"
    assert desk.seen.phases == []


def test_a_place_that_is_not_known_is_refused(desk: TestDesk) -> None:
    with pytest.raises(UsageError, match="there is no place moon"):
        run(desk, "--on moon", "pass\n")


@pytest.mark.real
def test_a_cell_may_be_run_again_under_its_name(desk: TestDesk) -> None:
    run(desk, "--name again", "print(1)\n")
    run(desk, "--name again", "print(2)\n")
    assert desk.seen.lines == ["worker-0 │ 2"]


def test_a_job_that_runs_keeps_its_name(desk: TestDesk, tmp_path: Path) -> None:
    run(desk, "--name mine --detach", ENDLESS)
    with pytest.raises(UsageError, match="there is a job mine already"):
        run(desk, "--name mine", "print(2)\n")
    assert desk.seen.ends == [("Failed", "there is a job mine already")]
    anyio.run(partial(desk.jobs().stop, "mine", grace=0))


def test_a_detached_job_is_attached_to_with_its_value(desk: TestDesk) -> None:
    run(desk, "--name left --detach --return y", "print('hello')\ny = 3\n")
    assert desk.seen.ends[0][0] == "Submitted"
    assert "%jobs attach left" in desk.seen.ends[0][1]
    cells.attach("left", desk)
    assert desk.names["y"] == 3
    assert desk.seen.lines == ["worker-0 │ hello"]


def test_attaching_to_no_job_names_those_there_are(desk: TestDesk) -> None:
    with pytest.raises(UsageError, match="there is no job nobody"):
        cells.attach("nobody", desk)


def test_an_interrupt_stops_the_job_and_leaves_no_process(desk: TestDesk, tmp_path: Path) -> None:
    with interrupted(lambda: len(alive(tmp_path)) == 2):
        run(desk, "--name gone --worker 2", ENDLESS)
    until(lambda: desk.seen.ends)
    assert desk.seen.ends == [("Stopped", "gone was interrupted, and is stopped")]
    assert "Stopping" in desk.seen.phases
    assert alive(tmp_path) == set()


@pytest.mark.real
def test_the_name_of_an_interrupted_job_is_free_again(desk: TestDesk, tmp_path: Path) -> None:
    with interrupted(lambda: alive(tmp_path)):
        run(desk, "--name mine", ENDLESS)
    run(desk, "--name mine", "print('again')\n")
    assert desk.seen.lines == ["worker-0 │ again"]


def test_an_interrupt_while_attached_leaves_the_job_alone(desk: TestDesk, tmp_path: Path) -> None:
    run(desk, "--name left --detach", ENDLESS)
    until(lambda: alive(tmp_path))
    desk.seen = Seen()
    with interrupted(lambda: desk.seen.views):
        cells.attach("left", desk)
    until(lambda: desk.seen.ends)
    assert desk.seen.ends == [("Detached", "left is not followed any more, and goes on")]
    assert state_of(desk, "left") == "Running"
    anyio.run(partial(desk.jobs().stop, "left", grace=0))


def test_an_interrupt_while_it_is_submitted_leaves_no_job_running(desk: TestDesk) -> None:
    with interrupted(lambda: "Submitting" in desk.seen.phases):
        run(desk, "--name early --worker 2", ENDLESS)
    until(lambda: desk.seen.ends)
    assert desk.seen.ends[-1][0] == "Stopped"
    names = anyio.run(desk.jobs().names)
    assert [state_of(desk, name) for name in names] in ([], ["Failed"])


def test_a_sweep_gives_what_its_best_job_returned(desk: TestDesk) -> None:
    code = "best = lr\nprint('loss', (lr - 2) ** 2)\n"
    run(desk, "--name sw --sweep lr=1,2 --pattern 'loss (.*)' --return best", code)
    assert desk.names["best"] == 2
    ((state, words),) = desk.seen.ends
    assert (state, words) == ("Succeeded", "best: sw-2 (lr=2) with loss 0")
    assert len(desk.seen.reports[-1].trials) == 2


def test_a_sweep_with_a_failed_job_fails_the_cell(desk: TestDesk) -> None:
    with pytest.raises(CellFailed, match="1 of 2 jobs of the sweep failed") as raised:
        run(desk, "--name sw --sweep lr=0,1 --return y", "y = 1 / lr\n")
    assert "sw-1 Failed" in raised.value.details[0]
    assert "y" not in desk.names


def test_an_interrupt_stops_the_jobs_of_a_sweep(desk: TestDesk, tmp_path: Path) -> None:
    with interrupted(lambda: alive(tmp_path)):
        run(desk, "--name sw --sweep lr=0,1,2 --parallel 1", ENDLESS)
    until(lambda: desk.seen.ends)
    assert desk.seen.ends == [("Stopped", "interrupted: the jobs that ran are stopped")]
    assert "Stopping" in desk.seen.phases
    assert alive(tmp_path) == set()
