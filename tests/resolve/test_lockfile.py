"""The lock file as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from danlu.environment.lock import (
    FunctionLock,
    Lock,
    LockedBase,
    LockedHttp,
    LockedImage,
    LockedInclude,
    LockedPackage,
    LockedPython,
    LockedSystem,
)
from danlu.errors import LockError
from danlu.graph import Deb
from danlu.resolve.lockfile import read_lock, write_lock

HASH = "0123456789abcdef" * 4
DEB = Deb("git", "1:2.39.5-0+deb12u2", "amd64", HASH, 7, "bookworm", "pool/main/g/git/git.deb")
WHEEL = LockedPackage("tqdm", "4.66.1", "index", "tqdm-4.66.1-py3-none-any.whl", HASH, 78)
FULL = FunctionLock(
    platform="linux/amd64",
    base=LockedBase("sha256:b", 1747, "debian", "bookworm", "glibc 2.36", packages=(DEB,)),
    python=LockedPython("sha256:p", "3.11.2", "/usr/bin/python3.11", "apt"),
    system=LockedSystem("sha256:s", (DEB,), ("git",)),
    packages_inputs="sha256:q",
    packages=(WHEEL,),
    http=(LockedHttp("https://example.org/a?b=c", HASH, 3),),
    images=(LockedImage("example.org/a:1", f"sha256:{HASH}"),),
    includes=(LockedInclude("https://example.org/lib", "main", "ab" * 20),),
)


def test_what_is_written_is_read() -> None:
    lock = Lock({"build": FULL, "serve": replace(FULL, packages=())})
    assert read_lock(write_lock(lock), "danlu.lock") == lock


def test_an_image_base_is_written_and_read() -> None:
    base = LockedBase("i", 1, image=LockedImage("debian:12", f"sha256:{HASH}"), python="3.11.2")
    lock = Lock({"build": FunctionLock("linux/amd64", base)})
    assert read_lock(write_lock(lock), "danlu.lock") == lock


def test_one_package_more_is_one_line_more() -> None:
    more = replace(FULL, packages=(WHEEL, replace(WHEEL, name="zipp", file="zipp-4.66.1-x.whl")))
    before = write_lock(Lock({"build": FULL})).splitlines()
    after = write_lock(Lock({"build": more})).splitlines()
    assert len(after) == len(before) + 1
    assert set(before) <= set(after)


@given(st.text(), st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_text_survives(url: str, name: str) -> None:
    lock = Lock({name: replace(FULL, http=(LockedHttp(url, HASH, 1),))})
    assert read_lock(write_lock(lock), "danlu.lock") == lock


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("version = 1", "version = 99", "version 99"),
        ("version = 1", "version = ", "not TOML"),
        (f'sha256 = "{HASH}"', 'sha256 = "beef"', "no valid sha256"),
        ('version = "4.66.1"', 'version = "4.67.0"', "does not go with its file"),
        ('file = "tqdm-', 'file = "../tqdm-', "impossible file name"),
        ('path = "pool/', 'path = "../pool/', "impossible path"),
        ("epoch = 1747", 'epoch = "then"', "epoch"),
        ("function.build.system]", "function.build.systems]", "unknown field systems"),
        ("[function.build]", "[functions.build]", "unknown field functions"),
        ('digest = "sha256:', 'digest = "sha257:', "no valid digest"),
    ],
)
def test_an_edited_lock_is_refused_with_a_way_out(before: str, after: str, says: str) -> None:
    text = write_lock(Lock({"build": FULL}))
    assert before in text
    with pytest.raises(LockError, match=says) as caught:
        read_lock(text.replace(before, after), "danlu.lock")
    assert "danlu lock" in caught.value.hint


def test_a_wrong_hash_is_reported_with_its_line() -> None:
    text = write_lock(Lock({"build": FULL}))
    broken = text.replace(f'whl", sha256 = "{HASH}"', 'whl", sha256 = "x"')
    with pytest.raises(LockError) as caught:
        read_lock(broken, "danlu.lock")
    assert caught.value.span is not None
    assert "tqdm" in broken.splitlines()[caught.value.span.line - 1]
