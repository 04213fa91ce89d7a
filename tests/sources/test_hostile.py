"""The hostile corpus as a cloned project, and as a fetched repository."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from pathlib import Path

import pytest

from danlu.errors import DanluError, OutsideError, UsageError
from danlu.sources.build_context import copy_entries, digest_path, list_entries
from danlu.sources.git import checkout, read_repository
from danlu.util.safe_paths import ProjectTree
from tests.hostile_archives import (
    CASES,
    SECRET,
    ArchiveEntry,
    ExtractionDirectory,
    HostileArchive,
    UnsupportedEntryError,
    git_commit_of,
)
from tests.hostile_archives import make_tree as make_project

# -- build contexts

NOT_IN_A_DIRECTORY = {
    *("parent", "parent-of-directory", "parent-as-directory", "through-parent", "empty", "dot"),
    *("through-parent-below", "parent-that-stays-inside", "absolute", "doubly-absolute", "nul"),
    *("long-name", "long-path", "trailing-slash-on-file", "link-out", "absolute-link-out"),
    *("link-to-file-out", "link-chain-out", "link-loop", "link-to-itself", "file-below-file"),
    *("link-replaced-by-directory", "directory-replaced-by-link", "file-replaced-by-link"),
    *("hard-link-to-link", "hard-link-through-link", "hard-link-to-missing", "duplicate"),
    *("hard-link-to-itself", "hard-link-to-directory", "character-device", "block-device"),
    *("claims-huge-size", "claims-negative-size", "capability-xattr", "hard-link-out"),
    *("absolute-hard-link", *(("overlay-xattr",) if os.geteuid() != 0 else ())),
}
REFUSED_AS_CONTEXT = {"deep-path": "directories deep"}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_hostile_project_is_copied_exactly_or_rejected(
    tmp_path: Path, case: HostileArchive
) -> None:
    pit = ExtractionDirectory(tmp_path / "pit")
    project, target = pit.root / "project", pit.root / "copy"
    project.mkdir()
    target.mkdir()
    try:
        make_project(case, project)
    except UnsupportedEntryError:
        assert case.name in NOT_IN_A_DIRECTORY
        return
    assert case.name not in NOT_IN_A_DIRECTORY
    if os.geteuid() != 0 and case.name == "unreadable":
        return
    if case.name in REFUSED_AS_CONTEXT:
        with pytest.raises(UsageError, match=REFUSED_AS_CONTEXT[case.name]):
            copy_project(project, target)
    else:
        assert copy_project(project, target) == digest_path(project, ".")
        assert digest_path(target, ".") == digest_path(project, ".")
        for path in target.rglob("*"):
            assert stat.S_IMODE(path.lstat().st_mode) in (0o644, 0o755, 0o777)
            assert not os.listxattr(path, follow_symlinks=False)
    pit.check_outside_is_intact()
    pit.check_no_secret()


def copy_project(project: Path, target: Path, source: str = ".") -> str:
    with ProjectTree(project) as tree:
        return copy_entries(tree, list_entries(tree, source), lambda member: target / member.target)


@pytest.mark.parametrize("source", ["l/secret", "l/*", "*/secret", "l", "*", "a/b/c/secret"])
@pytest.mark.parametrize("absolute", [False, True])
def test_no_way_through_links_brings_a_file_of_the_machine_into_a_context(
    tmp_path: Path, source: str, absolute: bool
) -> None:
    pit = ExtractionDirectory(tmp_path / "pit")
    project, target = pit.root / "project", pit.root / "copy"
    (project / "a/b").mkdir(parents=True)
    target.mkdir()
    out = str(pit.outside) if absolute else "../../outside"
    (project / "l").symlink_to(out)
    (project / "a/b/c").symlink_to(out if absolute else "../../../../outside")
    with contextlib.suppress(UsageError):
        copy_project(project, target, source)
    for path in target.rglob("*"):
        assert path.is_symlink() or path.is_dir() or SECRET not in path.read_bytes()
    pit.check_outside_is_intact()


def test_hard_link_to_a_file_of_the_machine_is_a_file_of_the_project(tmp_path: Path) -> None:
    """Only somebody who can read the file can create a hard link; git and archives create none."""
    (tmp_path / "outside").write_bytes(SECRET)
    project, target = tmp_path / "project", tmp_path / "target"
    project.mkdir()
    target.mkdir()
    os.link(tmp_path / "outside", project / "h")
    copy_project(project, target)
    (target / "h").write_bytes(b"changed")
    assert (tmp_path / "outside").read_bytes() == SECRET


# -- repositories

NOT_IN_GIT = {
    *("nul", "hard-link-out", "absolute-hard-link", "hard-link-through-link", "hard-link-to-link"),
    *("hard-link-to-missing", "hard-link-to-itself", "hard-link-to-directory", "fifo"),
    *("character-device", "block-device", "parent-as-directory", "file-below-file", "duplicate"),
    *("claims-huge-size", "claims-negative-size", "truncated", "overlay-xattr"),
    *("user-overlay-xattr", "capability-xattr", "link-replaced-by-directory"),
    *("directory-replaced-by-link", "link-to-file-out", "file-replaced-by-link"),
    *("link-out", "absolute-link-out", "link-chain-out", "link-loop", "link-to-itself"),
}
KEPT_FROM_GIT = {
    *("backslashes", "control-characters", "not-utf8", "drive", "case-collision", "link-out-alone"),
    *("setuid", "unreadable", "bomb", "whiteout", "whiteout-of-parent", "opaque-marker"),
    *("deep-path",),
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = tmp_path / "upstream.git"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(directory)], check=True)
    return directory


@pytest.mark.parametrize("case", CASES, ids=str)
def test_hostile_repository_is_checked_out_in_its_place_or_refused(
    tmp_path: Path, repository: Path, case: HostileArchive
) -> None:
    pit = ExtractionDirectory(tmp_path / "pit")
    try:
        commit = git_commit_of(case, repository)
    except UnsupportedEntryError:
        assert case.name in NOT_IN_GIT
        return
    assert case.name not in NOT_IN_GIT
    cache, url = pit.root / "cache", repository.as_uri()
    if case.name in KEPT_FROM_GIT:
        directory = checkout(url, commit, cache=cache)
        assert directory.parent == cache / "trees"
        for path in directory.rglob("*"):
            if ".git" not in path.relative_to(directory).parts and not path.is_symlink():
                assert path.lstat().st_mode & 0o7000 == 0
    else:
        with pytest.raises(OutsideError):
            checkout(url, commit, cache=cache)
        assert not list(cache.glob("trees/*"))
    pit.check_outside_is_intact()
    pit.check_no_secret()


@pytest.mark.parametrize(
    "name", [b"../x.envd", b"a/../x.envd", b"/x.envd", b".git/x.envd", b".git/hooks/post-checkout"]
)
def test_build_files_of_a_repository_are_read_without_a_checkout(
    tmp_path: Path, repository: Path, name: bytes
) -> None:
    pit = ExtractionDirectory(tmp_path / "pit")
    items = (ArchiveEntry("file", b"good.envd", b"x = 1\n"), ArchiveEntry("file", name, b"hostile"))
    git_commit_of(HostileArchive("", items), repository)
    cache = pit.root / "cache"
    with contextlib.suppress(DanluError):
        included = read_repository(repository.as_uri(), "main", commit="", cache=cache)
        assert included.files["good.envd"] == "x = 1\n"
    assert not [path for path in cache.rglob("*") if path.name.endswith(".envd")]
    assert not list(cache.rglob("post-checkout"))
    pit.check_outside_is_intact()


@pytest.mark.parametrize(
    "target", [b"/etc/passwd", b"../outside", b"good.envd", b".git/config"], ids=repr
)
def test_links_in_place_of_build_files_are_not_read(
    tmp_path: Path, repository: Path, target: bytes
) -> None:
    items = (
        ArchiveEntry("file", b"good.envd", b"x = 1\n"),
        ArchiveEntry("link", b"evil.envd", target),
    )
    git_commit_of(HostileArchive("", items), repository)
    included = read_repository(repository.as_uri(), "main", commit="", cache=tmp_path / "cache")
    assert dict(included.files) == {"good.envd": "x = 1\n"}
