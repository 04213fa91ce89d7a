"""A project's copy on another side: what is sent, fetched, kept and refused."""

from __future__ import annotations

import os
import stat
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from danlu.errors import OutsideError
from danlu.project_sync.types import SyncReport, stays_inside
from tests.project_sync.far_sides import SHELLS, TwoSides, install_busybox

_LONG = "deep/" * 20 + "file-with-a-name-of-more-than-a-hundred-bytes-together-with-its-directory"


@pytest.fixture(params=SHELLS)
def sides(request: pytest.FixtureRequest, tmp_path: Path) -> TwoSides:
    programs = install_busybox(tmp_path / "bin") if request.param == "busybox" else None
    return TwoSides(tmp_path, programs=programs)


def list_names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def read_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- what is exchanged ----------------------------------------------------------------------------


def test_files_are_copied_in_both_directions(sides: TwoSides) -> None:
    (sides.here / _LONG).parent.mkdir(parents=True)
    (sides.here / _LONG).write_text("long")
    (sides.here / "empty").mkdir()
    (sides.here / "link").symlink_to("empty")
    assert sides.copy().send_changes().copied == [_LONG, "link"]
    assert (sides.there / _LONG).read_text() == "long"
    assert os.readlink(sides.there / "link") == "empty"
    assert (sides.there / "empty").is_dir()
    assert sides.copy().fetch_changes() == SyncReport()
    (sides.there / "made there").write_text("made")
    (sides.there / _LONG).write_text("changed")
    (sides.there / "last").symlink_to("made there")
    assert sides.copy().fetch_changes().copied == [_LONG, "last", "made there"]
    assert (sides.here / "made there").read_text() == "made"
    assert (sides.here / _LONG).read_text() == "changed"
    assert os.readlink(sides.here / "last") == "made there"
    assert sides.copy().send_changes() == SyncReport()
    assert sides.copy().fetch_changes() == SyncReport()


def test_names_are_bytes(sides: TwoSides) -> None:
    names = [os.fsdecode(b"caf\xe9"), "line\nbreak", "-rf", "back\\slash", "quote'\"$(exit)", "\r"]
    for name in names:
        (sides.here / name).write_text("1")
    sides.copy().send_changes()
    for name in names:
        assert (sides.there / name).read_text() == "1"
        (sides.there / name).write_text("22")
    assert sides.copy().fetch_changes().copied == sorted(names)
    for name in names:
        assert (sides.here / name).read_text() == "22"
        (sides.here / name).write_text("333")
    assert sides.copy().send_changes() == SyncReport(copied=sorted(names))
    assert sides.copy().fetch_changes() == SyncReport()


def test_a_file_restored_with_its_old_time_is_a_change(sides: TwoSides) -> None:
    path, backup = sides.here / "conf.json", sides.here.parent / "conf.bak"
    path.write_text("one")
    os.utime(path, (1, 1))
    os.link(path, backup)
    sides.copy().send_changes()
    path.unlink()
    path.write_text("two")
    os.utime(path, (1, 1))
    assert sides.copy().send_changes().copied == ["conf.json"]
    assert (sides.there / "conf.json").read_text() == "two"
    os.rename(backup, path)
    assert sides.copy().send_changes().copied == ["conf.json"]
    assert (sides.there / "conf.json").read_text() == "one"


def test_a_file_restored_there_with_its_old_time_is_fetched(sides: TwoSides) -> None:
    (sides.here / "conf.json").write_text("one")
    sides.copy().send_changes()
    path = sides.there / "conf.json"
    time_there = path.stat().st_mtime_ns
    path.write_text("two")
    os.utime(path, ns=(time_there, time_there))
    assert sides.copy().fetch_changes().copied == ["conf.json"]
    assert (sides.here / "conf.json").read_text() == "two"


def test_a_file_that_changes_twice_in_a_second_is_fetched_twice(sides: TwoSides) -> None:
    sides.copy().send_changes()
    path = sides.there / "a"
    for text in ("1", "2", "3"):
        path.write_text(text)
        os.utime(path, (1, 1))
        sides.copy().fetch_changes()
        sides.copy().fetch_changes()  # which reads it, and could recognise it from now on
        assert (sides.here / "a").read_text() == text


def test_a_new_time_is_no_change(sides: TwoSides) -> None:
    (sides.here / "a").write_text("a")
    sides.copy().send_changes()
    os.utime(sides.here / "a", (5, 5))
    os.utime(sides.there / "a", (7, 7))
    assert sides.copy().send_changes() == SyncReport()
    assert sides.copy().fetch_changes() == SyncReport()


def test_contents_there_are_read_once(sides: TwoSides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("danlu.project_sync.remote_files._RACY_SECONDS", -10)
    (sides.here / "a").write_text("a")
    sides.copy().send_changes()
    sides.copy().fetch_changes()
    sides.shell.scripts.clear()
    sides.copy().fetch_changes()
    assert len(sides.shell.scripts) == 1


def test_modes_travel(sides: TwoSides) -> None:
    for mode in (0o600, 0o640, 0o444, 0o755):
        (sides.here / f"{mode:o}").write_text("x")
        (sides.here / f"{mode:o}").chmod(mode)
    (sides.here / "private").mkdir(mode=0o700)
    sides.copy().send_changes()
    for mode in (0o600, 0o640, 0o444, 0o755):
        assert read_mode(sides.there / f"{mode:o}") == mode
    assert read_mode(sides.there / "private") == 0o700
    (sides.here / "755").chmod(0o600)
    (sides.there / "600").chmod(0o644)
    (sides.there / "secret").mkdir(mode=0o700)
    (sides.there / "secret/key").write_text("key")
    (sides.there / "secret/key").chmod(0o600)
    (sides.there / "suid").write_text("x")
    (sides.there / "suid").chmod(0o6755)
    sides.copy().send_changes()
    sides.copy().fetch_changes()
    assert read_mode(sides.there / "755") == 0o600
    assert read_mode(sides.here / "600") == 0o644
    assert read_mode(sides.here / "secret") == 0o700
    assert read_mode(sides.here / "secret/key") == 0o600
    assert read_mode(sides.here / "suid") == 0o755


def test_nobody_else_can_enter_the_copy(sides: TwoSides) -> None:
    (sides.here / "a").write_text("a")
    sides.copy().send_changes()
    assert read_mode(sides.there.parent) == 0o700
    sides.there.parent.chmod(0o755)
    sides.copy().send_changes()
    assert read_mode(sides.there.parent) == 0o700


def test_another_volume_gets_everything_again(sides: TwoSides) -> None:
    (sides.here / "a").write_text("a")
    sides.copy().send_changes()
    (sides.there / "a").unlink()
    assert sides.copy().send_changes().copied == []  # it was removed there on purpose
    sides.there.rmdir()
    assert sides.copy().send_changes().copied == ["a"]


def test_files_with_several_names_are_fetched(sides: TwoSides) -> None:
    sides.copy().send_changes()
    (sides.there / "a").write_text("same")
    os.link(sides.there / "a", sides.there / "b")
    assert sides.copy().fetch_changes().copied == ["a", "b"]
    assert (sides.here / "b").read_text() == "same"


# -- conflicts and removals -----------------------------------------------------------------------


def test_both_versions_are_kept_under_free_names(sides: TwoSides) -> None:
    (sides.here / "a").write_text("before")
    sides.copy().send_changes()
    (sides.here / "a.remote").write_text("the only copy")
    (sides.here / "a").write_text("here")
    (sides.there / "a").write_text("there")
    assert sides.copy().fetch_changes().conflicts == ["a.remote.2"]
    assert (sides.here / "a").read_text() == "here"
    assert (sides.here / "a.remote").read_text() == "the only copy"
    assert (sides.here / "a.remote.2").read_text() == "there"
    assert sides.copy().send_changes().conflicts == []
    assert (sides.there / "a").read_text() == "here"
    (sides.here / "a").write_text("here again")
    (sides.there / "a").write_text("there again")
    assert sides.copy().send_changes().conflicts == ["a.remote.3"]
    assert (sides.there / "a").read_text() == "here again"
    assert (sides.there / "a.remote.3").read_text() == "there again"


def test_the_same_change_on_both_sides_is_no_conflict(sides: TwoSides) -> None:
    (sides.here / "a").write_text("before")
    sides.copy().send_changes()
    for side in (sides.here, sides.there):
        (side / "a").write_text("after")
        (side / "b").write_text("new")
    assert sides.copy().send_changes() == SyncReport()
    assert sides.copy().fetch_changes() == SyncReport()


def test_what_is_removed_here_is_removed_there_and_reported(sides: TwoSides) -> None:
    (sides.here / "d").mkdir()
    for name in ("d/gone", "changed"):
        (sides.here / name).write_text("x")
    sides.copy().send_changes()
    (sides.there / "changed").write_text("by a program")
    (sides.here / "changed").unlink()
    (sides.here / "d/gone").unlink()
    (sides.here / "d").rmdir()
    assert sides.copy().send_changes() == SyncReport(removed=["d/gone"])
    assert list_names(sides.there) == ["changed"]
    assert sides.copy().fetch_changes().copied == ["changed"]


def test_a_file_that_changes_while_changes_are_applied_is_kept(sides: TwoSides) -> None:
    (sides.here / "a").write_text("before")
    (sides.here / "b").write_text("before")
    sides.copy().send_changes()
    (sides.here / "a").write_text("here")
    (sides.here / "b").unlink()

    def change_there(data: bytes) -> None:
        if b"plan" in data:  # the archive, after everything was listed
            for name in ("a", "b"):
                (sides.there / name).write_text("just now")

    sides.shell.cut = change_there
    assert sides.copy().send_changes().conflicts == ["a.remote"]
    assert (sides.there / "a").read_text() == "here"
    assert (sides.there / "a.remote").read_text() == "just now"
    assert (sides.there / "b").read_text() == "just now"


def test_files_and_directories_replace_each_other(sides: TwoSides) -> None:
    (sides.here / "a").write_text("file")
    (sides.here / "b").mkdir()
    (sides.here / "b/inner").write_text("inner")
    (sides.here / "c").symlink_to("a")
    sides.copy().send_changes()
    (sides.here / "a").unlink()
    (sides.here / "a").mkdir()
    (sides.here / "a/inner").write_text("inner")
    (sides.here / "b/inner").unlink()
    (sides.here / "b").rmdir()
    (sides.here / "b").write_text("file")
    (sides.here / "c").unlink()
    (sides.here / "c").mkdir()
    assert sides.copy().send_changes().conflicts == []
    assert (sides.there / "a/inner").read_text() == "inner"
    assert (sides.there / "b").read_text() == "file"
    assert (sides.there / "c").is_dir()


def test_a_directory_with_files_that_were_made_there_gives_way(sides: TwoSides) -> None:
    (sides.here / "src").mkdir()
    sides.copy().send_changes()
    (sides.there / "src/out").write_text("made there")
    (sides.here / "src").rmdir()
    (sides.here / "src").write_text("file")
    assert sides.copy().send_changes().conflicts == ["src.remote"]
    assert (sides.there / "src").read_text() == "file"
    assert (sides.there / "src.remote/out").read_text() == "made there"


# -- ignored files --------------------------------------------------------------------------------


def test_ignored_files_stay_there_unless_they_are_named(sides: TwoSides) -> None:
    (sides.here / ".gitignore").write_text("checkpoints/\n*.log\n")
    sides.copy().send_changes()
    (sides.there / "checkpoints").mkdir()
    (sides.there / "checkpoints/last.pt").write_text("weights")
    (sides.there / "checkpoints/first.pt").write_text("weights 0")
    (sides.there / "run.log").write_text("log")
    ignored = ["checkpoints/first.pt", "checkpoints/last.pt", "run.log"]
    assert sides.copy().fetch_changes() == SyncReport(ignored=ignored)
    assert list_names(sides.here) == [".gitignore"]
    assert sides.copy().fetch_changes(["checkpoints/l*"]).copied == ["checkpoints/last.pt"]
    assert sides.copy().fetch_changes() == SyncReport(ignored=[ignored[0], ignored[2]])
    assert sides.copy().fetch_changes(["checkpoints/"]).copied == ["checkpoints/first.pt"]
    (sides.here / "checkpoints/last.pt").unlink()
    assert sides.copy().send_changes() == SyncReport()
    assert sides.copy().fetch_changes(["checkpoints"]).copied == ["checkpoints/last.pt"]


def test_what_comes_to_be_ignored_is_not_removed_there(sides: TwoSides) -> None:
    (sides.here / "data").mkdir()
    (sides.here / "data/large").write_text("large")
    sides.copy().send_changes()
    (sides.here / ".danluignore").write_text("data/\n")
    assert sides.copy().send_changes().removed == []
    assert (sides.there / "data/large").read_text() == "large"
    (sides.here / "data/large").unlink()
    assert sides.copy().send_changes().removed == []
    assert (sides.there / "data/large").read_text() == "large"


def test_the_rules_of_the_other_side_do_not_count(sides: TwoSides) -> None:
    (sides.here / ".gitignore").write_text("secret\n")
    sides.copy().send_changes()
    (sides.there / ".gitignore").unlink()
    (sides.there / "secret").write_text("made there")
    (sides.here / "secret").write_text("here")
    assert sides.copy().fetch_changes().copied == []
    assert (sides.here / "secret").read_text() == "here"


# -- links ----------------------------------------------------------------------------------------


def test_links_that_lead_outside_are_named_and_not_copied(sides: TwoSides) -> None:
    for name, target in {"data": "/mnt/data", "up": "../x", "git": ".git/hooks"}.items():
        (sides.here / name).symlink_to(target)
    assert sides.copy().send_changes() == SyncReport(outside=["data", "git", "up"])
    assert sides.copy().send_changes() == SyncReport()
    assert list_names(sides.there) == []
    (sides.there / "out").symlink_to("/etc")
    assert sides.copy().fetch_changes() == SyncReport(outside=["out"])
    assert not (sides.here / "out").is_symlink()


def test_what_is_now_behind_a_link_is_not_removed_there(sides: TwoSides) -> None:
    (sides.here / "data").mkdir()
    (sides.here / "data/large").write_text("large")
    sides.copy().send_changes()
    os.rename(sides.here / "data", sides.here.parent / "data")
    (sides.here / "data").symlink_to("../data")
    assert sides.copy().send_changes() == SyncReport(outside=["data"])
    assert (sides.there / "data/large").read_text() == "large"


@pytest.mark.parametrize(
    ("path", "target", "is_inside"),
    [
        ("a", "b/c", True),
        ("d/a", "../b", True),
        ("d/a", "./b", True),
        ("a", "../b", False),
        ("d/a", "../../b", False),
        ("a", "/b", False),
        ("a", "b/../../c", False),
        ("a", ".GIT/hooks", False),
        ("a", ".g\u200cit/hooks", False),
    ],
)
def test_links_lead_inside_whatever_other_links_are(
    path: str, target: str, is_inside: bool
) -> None:
    assert stays_inside(path, target) == is_inside


# -- a hostile or broken other side ---------------------------------------------------------------


def test_git_directories_are_exchanged_in_no_direction(sides: TwoSides) -> None:
    for name in (".git/hooks", "module/.git"):
        (sides.here / name).mkdir(parents=True)
    (sides.here / ".git/config").write_text("here")
    sides.copy().send_changes()
    assert list_names(sides.there) == ["module"]
    for name in (".git/hooks", "module/.git/hooks", "new/.GIT"):
        (sides.there / name).mkdir(parents=True)
        (sides.there / name / "post-commit").write_text("#!/bin/sh\n")
    assert sides.copy().fetch_changes(["*"]) == SyncReport()
    assert list_names(sides.here) == [".git", ".git/config", ".git/hooks", "module", "module/.git"]


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/x", "a//b", "./x"])
def test_a_list_with_invalid_paths_is_refused(sides: TwoSides, path: str) -> None:
    sides.copy().send_changes()
    line = f"81a4 5 1 1 1 ./{path}\nend\n".encode()
    sides.shell.answer = lambda data: data.replace(b"end\n", line)
    with pytest.raises(OutsideError, match="invalid answer of box: the path"):
        sides.copy().fetch_changes()


@pytest.mark.parametrize(
    "text", [b"", b"volume x\n", b"volume " + b"0" * 32 + b"\nnow soon\nend\n"]
)
def test_an_answer_that_is_no_list_is_refused(sides: TwoSides, text: bytes) -> None:
    sides.shell.answer = lambda data: text
    with pytest.raises(OutsideError, match="invalid answer of box"):
        sides.copy().send_changes()


def send_archive(sides: TwoSides, *members: tarfile.TarInfo, data: bytes = b"") -> None:
    """Answer the request for a file called `asked` with another archive."""
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member in members:
            member.size = len(data) if member.isreg() else 0
            archive.addfile(member, BytesIO(data))

    def answer(output: bytes) -> bytes:
        return (
            buffer.getvalue()
            if sides.shell.scripts[-1:] and output[257:262] == b"ustar"
            else output
        )

    sides.copy().send_changes()
    (sides.there / "asked").write_text("asked")
    sides.shell.answer = answer


@pytest.mark.parametrize("name", ["unasked", "../asked", "/asked", ".git/hooks/post-commit"])
def test_files_that_were_not_asked_for_are_refused(sides: TwoSides, name: str) -> None:
    send_archive(sides, tarfile.TarInfo(name), data=b"hostile")
    with pytest.raises(OutsideError, match="unexpected file"):
        sides.copy().fetch_changes()
    assert list_names(sides.here.parent) == ["project"]


@pytest.mark.parametrize("type", [tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_devices_pipes_and_directories_are_refused(sides: TwoSides, type: bytes) -> None:
    member = tarfile.TarInfo("./asked")
    member.type = type
    send_archive(sides, member)
    with pytest.raises(OutsideError, match="unexpected file"):
        sides.copy().fetch_changes()
    assert list_names(sides.here) == []


def test_a_file_that_comes_twice_is_refused(sides: TwoSides) -> None:
    send_archive(sides, tarfile.TarInfo("./asked"), tarfile.TarInfo("./asked"), data=b"x")
    with pytest.raises(OutsideError, match="unexpected file"):
        sides.copy().fetch_changes()


def test_a_file_that_becomes_a_link_leads_nowhere(sides: TwoSides) -> None:
    member = tarfile.TarInfo("./asked")
    member.type, member.linkname = tarfile.SYMTYPE, "../../outside"
    send_archive(sides, member)
    assert sides.copy().fetch_changes() == SyncReport(outside=["asked"])
    assert list_names(sides.here) == []


def test_a_truncated_archive_is_one_error(sides: TwoSides) -> None:
    sides.copy().send_changes()
    (sides.there / "asked").write_bytes(os.urandom(5000))
    sides.shell.answer = lambda data: data[:3000] if b"ustar" in data else data
    with pytest.raises(OutsideError, match="cannot read the files"):
        sides.copy().fetch_changes()
    assert list_names(sides.here) == []


def test_no_file_is_written_through_a_link_here(sides: TwoSides, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (sides.here / "out").symlink_to(outside)
    sides.copy().send_changes()
    (sides.there / "out").mkdir()
    (sides.there / "out/file").write_text("hostile")
    assert sides.copy().fetch_changes().skipped == ["out/file"]
    assert list(outside.iterdir()) == []


def test_no_file_is_written_or_removed_through_a_link_there(
    sides: TwoSides, tmp_path: Path
) -> None:
    """A program there replaces a directory by a link to a place that it cannot reach itself."""
    victim = tmp_path / "victim"
    (sides.here / "src").mkdir()
    for name in ("model.py", "gone.py"):
        (sides.here / "src" / name).write_text("x = 1")
    sides.copy().send_changes()
    os.rename(sides.there / "src", victim)
    (sides.there / "src").symlink_to(victim)
    (sides.here / "src/model.py").write_text("x = 22")
    (sides.here / "src/gone.py").unlink()
    assert sides.copy().send_changes().conflicts == ["src.remote"]
    assert sorted((path.name, path.read_text()) for path in victim.iterdir()) == [
        ("gone.py", "x = 1"),
        ("model.py", "x = 1"),
    ]
    assert (sides.there / "src/model.py").read_text() == "x = 22"


def test_a_directory_that_becomes_a_link_meanwhile_is_not_entered(
    sides: TwoSides, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    (sides.here / "src").mkdir()
    (sides.here / "src/model.py").write_text("x = 1")
    sides.copy().send_changes()

    def swap_directory(data: bytes) -> None:
        if b"plan" in data:  # after everything was listed
            os.rename(sides.there / "src", victim)
            (sides.there / "src").symlink_to(victim)

    (sides.here / "src/model.py").write_text("x = 22")
    sides.shell.cut = swap_directory
    with pytest.raises(OutsideError, match="src is not a directory"):
        sides.copy().send_changes()
    assert [path.read_text() for path in victim.iterdir()] == ["x = 1"]


def test_a_full_stage_of_links_is_removed_without_following_them(
    sides: TwoSides, tmp_path: Path
) -> None:
    sides.copy().send_changes()
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("x")
    (sides.there.parent.parent / "key.stage").symlink_to(victim)
    (sides.here / "a").write_text("a")
    sides.copy().send_changes()
    assert (victim / "file").read_text() == "x"
    assert (sides.there / "a").read_text() == "a"


def test_an_edit_during_a_fetch_is_kept(sides: TwoSides) -> None:
    (sides.here / "a").write_text("before")
    sides.copy().send_changes()
    (sides.there / "a").write_text("there")

    def edit_here(data: bytes) -> bytes:
        if b"ustar" in data:
            (sides.here / "a").write_text("while it was fetched")
        return data

    sides.shell.answer = edit_here
    assert sides.copy().fetch_changes().conflicts == ["a.remote"]
    assert (sides.here / "a").read_text() == "while it was fetched"
    assert (sides.here / "a.remote").read_text() == "there"


def test_a_file_that_cannot_be_written_there_is_an_error(sides: TwoSides) -> None:
    sides.copy().send_changes()
    (sides.here / ("x" * 255)).write_text("a")
    (sides.there / ("x" * 255)).write_text("b")
    with pytest.raises(OutsideError, match="name too long"):
        sides.copy().send_changes()
    assert (sides.there / ("x" * 255)).read_text() == "b"


# -- cuts -----------------------------------------------------------------------------------------


def lose_answer(sides: TwoSides) -> None:
    """Lose what the next archive's script prints: it does its work."""
    sides.shell.cut = lambda data: len(data) if b"plan" in data else None
    with pytest.raises(OutsideError):
        sides.copy().send_changes()
    sides.shell.cut = lambda data: None


def test_an_edit_after_a_cut_is_no_conflict(sides: TwoSides) -> None:
    (sides.here / "a").write_text("first")
    sides.copy().send_changes()
    (sides.here / "a").write_text("second")
    lose_answer(sides)
    assert (sides.there / "a").read_text() == "second"
    (sides.here / "a").write_text("third")
    assert sides.copy().send_changes() == SyncReport(copied=["a"])
    assert list_names(sides.there) == ["a"]


def test_a_file_that_is_removed_after_a_cut_does_not_come_back(sides: TwoSides) -> None:
    sides.copy().send_changes()
    (sides.here / "new").write_text("new")
    lose_answer(sides)
    assert list_names(sides.there) == ["new"]
    (sides.here / "new").unlink()
    assert sides.copy().fetch_changes() == SyncReport()
    assert sides.copy().send_changes() == SyncReport(removed=["new"])
    assert sides.copy().fetch_changes() == SyncReport()
    assert list_names(sides.there) == []


def test_an_archive_that_is_cut_off_changes_nothing(sides: TwoSides) -> None:
    (sides.here / "a").write_text("a")
    (sides.here / "b").write_text("b" * 100_000)
    sides.copy().send_changes()
    (sides.here / "a").unlink()
    (sides.here / "b").write_text("c" * 100_000)
    lengths = iter(range(0, 102_000, 1500))
    sides.shell.cut = lambda data: next(lengths) if b"plan" in data else None
    for _ in range(0, 102_000, 1500):
        with pytest.raises(OutsideError):
            sides.copy().send_changes()
    assert (sides.there / "a").read_text() == "a"
    assert (sides.there / "b").read_text() == "b" * 100_000
