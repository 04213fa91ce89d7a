"""Git's hash of an archive's files."""

from __future__ import annotations

import io
import tarfile

import pytest

from danlu.errors import OutsideError
from danlu.oci.git_tree import read_archive_tree
from tests.fakes.julia import hash_files, pack_files


def make_tar(*members: tuple[str, bytes, str]) -> io.BytesIO:
    """A tar of entries: path, type, link."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for path, kind, link in members:
            member = tarfile.TarInfo(path)
            member.type, member.linkname = kind, link
            tar.addfile(member, io.BytesIO())
    data.seek(0)
    return data


def test_hash_is_gits() -> None:
    files = {
        "a/b": "1",
        "a.b": "2",
        "a-b/c": "3",
        "bin/run": "#!/bin/sh\n",
        "Ünïcode.txt": "4",
        "src/deep/er/x.jl": "",
    }
    archive_tree = read_archive_tree(
        io.BytesIO(pack_files(files)), lambda path: path == "a/b", name="archive"
    )
    assert archive_tree.sha1 == hash_files(files)
    assert archive_tree.paths == frozenset(files)
    assert archive_tree.files == {"a/b": b"1"}


def test_links_count_and_empty_directories_do_not() -> None:
    link = ("run", tarfile.SYMTYPE, "bin/run")
    archive_tree = read_archive_tree(make_tar(link), lambda path: True, name="x")
    # git mktree <<< "120000 blob $(printf bin/run | git hash-object --stdin)\trun"
    assert archive_tree.sha1 == "188211c6c8fbfb083210e8ea846b4b5eb15d6cb2"
    with_directory = make_tar(("empty/", tarfile.DIRTYPE, ""), link)
    assert read_archive_tree(with_directory, lambda path: True, name="x").sha1 == archive_tree.sha1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (make_tar(("../x", tarfile.REGTYPE, "")), "leads outside"),
        (make_tar(("/x", tarfile.REGTYPE, "")), "absolute path"),
        (make_tar(("x", tarfile.CHRTYPE, "")), "special file: x"),
        (make_tar(("x", tarfile.LNKTYPE, "y")), "special file: x"),
        (make_tar(("x", tarfile.REGTYPE, ""), ("x", tarfile.REGTYPE, "")), "two entries named x"),
        (make_tar(("x", tarfile.REGTYPE, ""), ("x/y", tarfile.REGTYPE, "")), "two entries named x"),
        (io.BytesIO(pack_files({"x": "1"})[:-20]), "truncated"),
        (io.BytesIO(b"<html>" * 100), "cannot read evil"),
    ],
)
def test_files_that_git_cannot_store_are_rejected(data: io.BytesIO, message: str) -> None:
    with pytest.raises(OutsideError, match=message):
        read_archive_tree(data, lambda path: True, name="evil")


def test_archive_that_expands_too_much_is_refused() -> None:
    data = io.BytesIO(pack_files({"x": "0" * 100_000}))
    with pytest.raises(OutsideError, match="limit"):
        read_archive_tree(data, lambda path: False, name="bomb", limit=50_000)
