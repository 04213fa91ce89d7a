"""Project sync with another machine: what is copied, and conflicts if both sides change.

A program called ``ssh`` on PATH runs the command in a shell here, with another home.
"""

from __future__ import annotations

import os
import stat
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from danlu.commands.remote.project_sync import ProjectLink
from danlu.commands.remote.receive import receive_project
from danlu.commands.remote.remote_host import RemoteHost
from danlu.engine.project_files import (
    FileRecord,
    ProjectOffer,
    list_files,
    read_contents,
    write_message,
)
from danlu.errors import OutsideError, UsageError
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
    # Instead of 200 MB of packages.
    launcher = f'#!/bin/sh\nexec {sys.executable} -P -m "$@"\n'
    directory = home / ".local/share/danlu/programs/test"
    directory.mkdir(parents=True)
    (directory / "launch").write_text(launcher)
    (directory / "launch").chmod(0o755)
    monkeypatch.setattr("danlu.commands.remote.program_transfer._identify_program", lambda: "test")
    return home


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "digits"
    (directory / "src").mkdir(parents=True)
    (directory / "train.py").write_text("print(1)\n")
    (directory / "src/model.py").write_text("x = 1\n")
    (directory / "run.sh").write_text("#!/bin/sh\n")
    (directory / "run.sh").chmod(0o755)
    (directory / "link").symlink_to("train.py")
    (directory / ".gitignore").write_text("data/\n")
    (directory / "data").mkdir()
    (directory / "data/large").write_text("not sent\n")
    return directory


@pytest.fixture
def link(far: Path, project: Path, tmp_path: Path) -> ProjectLink:
    paths = Paths.of({"DANLU_HOME": str(tmp_path / "home")})
    return ProjectLink(RemoteHost("ssh://box"), project, paths)


def test_only_what_changed_is_copied(link: ProjectLink, project: Path) -> None:
    first = link.send_project()
    copy = Path(first.directory)
    assert first.sent == 4
    assert (copy / "src/model.py").read_text() == "x = 1\n"
    assert stat.S_IMODE((copy / "run.sh").stat().st_mode) == 0o755
    assert os.readlink(copy / "link") == "train.py"
    assert not (copy / "data").exists()
    assert link.send_project().sent == 0
    (project / "train.py").write_text("print(2)\n")
    (project / "src/model.py").unlink()
    assert link.send_project().sent == 1
    assert (copy / "train.py").read_text() == "print(2)\n"
    assert not (copy / "src/model.py").exists()


def test_remote_files_are_kept_and_can_be_fetched(link: ProjectLink, project: Path) -> None:
    copy = Path(link.send_project().directory)
    (copy / "model.bin").write_bytes(b"weights")
    (copy / "src/out").mkdir()
    (copy / "src/out/log").write_text("epoch 1\n")
    (project / "new.py").write_text("")
    link.send_project()
    assert (copy / "model.bin").exists()
    fetched = link.fetch_changes()
    assert (sorted(fetched.written), fetched.conflicts) == (["model.bin", "src/out/log"], ())
    assert (project / "model.bin").read_bytes() == b"weights"
    assert link.send_project().sent == 0
    assert link.fetch_changes().written == ()


def test_both_versions_of_a_file_are_kept(link: ProjectLink, project: Path) -> None:
    copy = Path(link.send_project().directory)
    (copy / "train.py").write_text("there, and longer\n")
    (project / "train.py").write_text("here\n")
    assert link.fetch_changes().conflicts == ("train.py",)
    assert (project / "train.py").read_text() == "here\n"
    assert (project / "train.py.remote").read_text() == "there, and longer\n"
    (project / "train.py.remote").unlink()
    assert link.send_project().conflicts == ("train.py",)
    assert (copy / "train.py").read_text() == "here\n"
    assert (copy / "train.py.remote").read_text() == "there, and longer\n"


def test_an_earlier_conflict_is_kept_too(link: ProjectLink, project: Path) -> None:
    copy = Path(link.send_project().directory)
    for number in (1, 2):
        (copy / "train.py").write_text(f"there {'!' * number}\n")
        (project / "train.py").write_text(f"here {'!' * number}\n")
        assert link.send_project().conflicts == ("train.py",)
    assert (copy / "train.py.remote").read_text() == "there !\n"
    assert (copy / "train.py.remote.2").read_text() == "there !!\n"


def test_names_need_not_be_utf8(link: ProjectLink, project: Path) -> None:
    name = os.fsdecode(b"caf\xe9\n")
    (project / name).write_text("1\n")
    copy = Path(link.send_project().directory)
    assert (copy / name).read_text() == "1\n"
    assert link.send_project().sent == 0
    (copy / f"{name}2").write_text("2\n")
    assert link.fetch_changes().written == (f"{name}2",)


def test_files_and_directories_replace_each_other(link: ProjectLink, project: Path) -> None:
    copy = Path(link.send_project().directory)
    (project / "src/model.py").unlink()
    (project / "src").rmdir()
    (project / "src").write_text("now a file\n")
    for name in ("run.sh", "link"):
        (project / name).unlink()
        (project / name).mkdir()
    assert link.send_project().conflicts == ()
    assert (copy / "src").read_text() == "now a file\n"
    assert (copy / "run.sh").is_dir()
    assert (copy / "link").is_dir()


def test_a_directory_with_new_files_gives_way(link: ProjectLink, project: Path) -> None:
    copy = Path(link.send_project().directory)
    (copy / "src/out").write_text("made there\n")
    (project / "src/model.py").unlink()
    (project / "src").rmdir()
    (project / "src").symlink_to("train.py")
    assert link.send_project().conflicts == ("src",)
    assert os.readlink(copy / "src") == "train.py"
    assert (copy / "src.remote/out").read_text() == "made there\n"


def test_nothing_is_written_through_links(link: ProjectLink, project: Path, tmp_path: Path) -> None:
    copy = Path(link.send_project().directory)
    victim = tmp_path / "victim"
    victim.mkdir()
    # A program there replaces a directory by a link to another place.
    (copy / "src/model.py").unlink()
    (copy / "src").rmdir()
    (copy / "src").symlink_to(victim)
    (project / "src/model.py").write_text("x = 22\n")
    link.send_project()
    assert list(victim.iterdir()) == []
    assert (copy / "src/model.py").read_text() == "x = 22\n"


def test_an_unreachable_machine_is_one_error(far: Path, project: Path, tmp_path: Path) -> None:
    paths = Paths.of({"DANLU_HOME": str(tmp_path / "home")})
    link = ProjectLink(RemoteHost("ssh://unreachable"), project, paths)
    with pytest.raises(OutsideError, match=r"cannot connect to unreachable: .*refused"):
        link.send_project()


def test_the_home_directory_is_rejected_as_project(far: Path, tmp_path: Path) -> None:
    paths = Paths.of({"DANLU_HOME": str(tmp_path / "home")})
    with pytest.raises(UsageError, match="is not a project"):
        ProjectLink(RemoteHost("ssh://box"), Path.home(), paths)


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "unasked"])
def test_files_that_were_not_requested_are_refused(path: str, tmp_path: Path) -> None:
    data = BytesIO()
    with tarfile.open(fileobj=data, mode="w|") as archive:
        archive.addfile(tarfile.TarInfo(path))
    data.seek(0)
    with pytest.raises(OutsideError, match="unexpected file"):
        list(read_contents(data, tmp_path, {"asked": "asked"}))


@pytest.mark.parametrize(("key", "name"), [("../x", "a"), ("0" * 16, "../a"), ("0" * 16, "..")])
def test_a_copy_is_written_only_below_its_directory(key: str, name: str, tmp_path: Path) -> None:
    data = BytesIO()
    write_message(data, ProjectOffer(key, name))
    data.seek(0)
    with pytest.raises(UsageError, match="invalid project"):
        receive_project(Paths.of({"DANLU_HOME": str(tmp_path)}), data, BytesIO())


def test_paths_that_lead_upwards_are_refused(tmp_path: Path) -> None:
    data = BytesIO()
    files = (FileRecord("../../escape", "directory"),)
    write_message(data, ProjectOffer("0" * 16, "digits", files))
    data.seek(0)
    with pytest.raises(UsageError, match="invalid path"):
        receive_project(Paths.of({"DANLU_HOME": str(tmp_path)}), data, BytesIO())
    assert not (tmp_path / "escape").exists()


def test_times_have_all_digits(project: Path) -> None:
    os.utime(project / "train.py", ns=(1, 1_234_567_890_123_456_789))
    (record,) = [item for item in list_files(project) if item.path == "train.py"]
    assert record.mtime == 1_234_567_890_123_456_789
