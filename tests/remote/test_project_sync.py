"""A project's copy on another machine, through a program called ``ssh`` that runs a shell here.

What is copied, and how, is tested with the room itself (``tests/project_sync``).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from danlu.errors import OutsideError, UsageError
from danlu.remote.project_sync import RemoteProject
from danlu.remote.remote_host import RemoteHost
from danlu.util.paths import Paths

_SSH = """#!{python}
import os, sys
home = {home!r}
if sys.argv[sys.argv.index("--") + 1] == "unreachable":
    sys.stderr.write("ssh: connect to host unreachable port 22: Connection refused\\n")
    sys.exit(255)
environ = {{"HOME": home, "PATH": {path!r}}}
os.execve("/bin/sh", ["sh", "-c", sys.argv[-1]], environ)
"""


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory of the other machine."""
    home, programs = tmp_path / "far", tmp_path / "bin"
    home.mkdir()
    programs.mkdir()
    # Its python3 is ours, so that danlu can be copied there.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ssh = programs / "ssh"
    ssh.write_text(_SSH.format(python=sys.executable, home=str(home), path=path))
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return home


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "digits"
    directory.mkdir()
    (directory / "train.py").write_text("print(1)\n")
    return directory


def open_project(directory: Path, project: Path, *, url: str = "ssh://box") -> RemoteProject:
    """Return the copy as seen by a machine that has danlu's files in a directory."""
    return RemoteProject(RemoteHost(url), project, Paths.of({"DANLU_HOME": str(directory)}))


def find_copies(far: Path, name: str) -> list[Path]:
    return sorted(far.glob(f".local/share/danlu/projects/*/{name}"))


def test_files_are_sent_and_fetched(far: Path, project: Path, tmp_path: Path) -> None:
    assert open_project(tmp_path / "here", project).send_changes().copied == ["train.py"]
    (copy,) = find_copies(far, "digits")
    assert (copy / "train.py").read_text() == "print(1)\n"
    (copy / "model.bin").write_bytes(b"weights" * 100_000)
    report = open_project(tmp_path / "here", project).fetch_changes()
    assert report.copied == ["model.bin"]
    assert (project / "model.bin").read_bytes() == b"weights" * 100_000
    assert open_project(tmp_path / "here", project).send_changes().copied == []


def test_machines_with_one_name_have_copies_of_their_own(
    far: Path, project: Path, tmp_path: Path
) -> None:
    open_project(tmp_path / "one", project).send_changes()
    (project / "train.py").rename(project / "other.py")
    open_project(tmp_path / "two", project).send_changes()
    assert len(find_copies(far, "digits")) == 2
    assert len(find_copies(far, "digits/train.py")) == 1


def test_only_the_owner_enters_a_copy(far: Path, project: Path, tmp_path: Path) -> None:
    open_project(tmp_path / "here", project).send_changes()
    (copy,) = find_copies(far, "digits")
    assert [path.stat().st_mode & 0o777 for path in copy.parents[:2]] == [0o700, 0o700]


def test_the_name_of_a_project_is_no_code(far: Path, tmp_path: Path) -> None:
    project = tmp_path / "$(touch x)'\n;exit 1"
    project.mkdir()
    (project / "a").write_text("a")
    assert open_project(tmp_path / "here", project).send_changes().copied == ["a"]
    assert len(find_copies(far, "*/a")) == 1


def test_an_unreachable_machine_is_one_error(far: Path, project: Path, tmp_path: Path) -> None:
    copy = open_project(tmp_path / "here", project, url="ssh://unreachable")
    with pytest.raises(OutsideError, match=r"cannot connect to unreachable: .*refused"):
        copy.send_changes()


def test_the_home_directory_is_rejected_as_project(far: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a project"):
        open_project(tmp_path / "here", Path.home())


def test_an_endless_answer_is_refused(
    far: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin/ssh").write_text("#!/bin/sh\nexec cat /dev/zero\n")
    monkeypatch.setattr("danlu.project_sync.remote_files._MAX_OUTPUT", 1 << 20)
    with pytest.raises(OutsideError, match="box sends more than was asked for"):
        open_project(tmp_path / "here", project).send_changes()
