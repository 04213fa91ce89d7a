"""The text of the lockfile."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from danlu.environment.lock import (
    MAX_EPOCH,
    FunctionLock,
    Lock,
    LockedBase,
    LockedImage,
    LockedPackage,
    LockedPython,
    LockedSetting,
    LockedSystem,
)
from danlu.errors import LockError
from danlu.graph.ops import DebPackage
from danlu.lang.functions.include import LockedInclude
from danlu.lang.functions.steps import LockedHttp
from danlu.resolve.lockfile import read_lock, write_lock

HASH = "0123456789abcdef" * 4
DEB = DebPackage(
    "git", "1:2.39.5-0+deb12u2", "amd64", HASH, 7, "bookworm", "pool/main/g/git/git.deb"
)
WHEEL = LockedPackage("tqdm", "4.66.1", "index", "tqdm-4.66.1-py3-none-any.whl", HASH, 78)
FULL = FunctionLock(
    platform="linux/amd64",
    base=LockedBase("sha256:b", 1747, "debian", "bookworm", "glibc 2.36", packages=(DEB,)),
    python=LockedPython("sha256:p", "3.11.2", "/usr/bin/python3.11", "apt"),
    system=LockedSystem("sha256:s", (DEB,), ("git",)),
    packages_inputs="sha256:q",
    packages=(WHEEL,),
    package_settings=(LockedSetting("constraint", "tqdm<5", "PIP_CONSTRAINT", "tqdm"),),
    sections={
        "http": (LockedHttp("https://example.org/a?b=c", HASH, 3),),
        "images": (LockedImage("example.org/a:1", f"sha256:{HASH}"),),
        "includes": (LockedInclude("https://example.org/lib", "main", "ab" * 20),),
    },
)
BASE_DEB = replace(DEB, name="base-files")
IMAGE = LockedImage("example.org/base:1", f"sha256:{HASH}")
LOCKED_IMAGE = FunctionLock("linux/amd64", LockedBase("i", 1, image=IMAGE))


def with_base_deb(**changes: object) -> FunctionLock:
    return replace(FULL, base=replace(FULL.base, packages=(replace(BASE_DEB, **changes),)))


def with_deb(**changes: object) -> FunctionLock:
    system = LockedSystem("sha256:s", (replace(DEB, **changes),), ("git",))
    return replace(FULL, system=system)


def with_epoch(epoch: int) -> FunctionLock:
    return replace(FULL, base=replace(FULL.base, epoch=epoch))


def with_sections(**pins: msgspec.Struct) -> FunctionLock:
    return replace(FULL, sections={name: (pin,) for name, pin in pins.items()})


def with_wheel(**changes: object) -> FunctionLock:
    return replace(FULL, packages=(replace(WHEEL, **changes),))


@pytest.mark.parametrize(
    ("lock", "says"),
    [
        *(
            pytest.param(
                make(sha256=text), f"{what} has an invalid sha256", id=f"{what} {text[:9]}"
            )
            for what, make in [
                ("base-files", with_base_deb),
                ("git", with_deb),
                ("tqdm", with_wheel),
            ]
            for text in ("", HASH[:-1], HASH + "0", HASH.upper(), "g" + HASH[1:], HASH + "\n")
        ),
        (with_base_deb(path="../x"), "base-files has an invalid path"),
        (with_deb(path="pool/../../x"), "git has an invalid path"),
        (with_deb(path="/etc/passwd"), "git has an invalid path"),
        (with_wheel(file="a/tqdm-4.66.1-py3-none-any.whl"), "tqdm has an invalid file name"),
        (with_wheel(editable=True), "tqdm is editable, but not a directory"),
        (with_wheel(file="tqdm-4.66.1.tar.gz"), "tqdm of an index is not a wheel"),
        (with_epoch(2**62), "the base has an invalid epoch, 4611686018427387904"),
        (with_epoch(MAX_EPOCH + 1), "the base has an invalid epoch"),
        (with_epoch(-1), "the base has an invalid epoch, -1"),
        (with_wheel(file="other-4.66.1-py3-none-any.whl"), "does not match its file"),
        (with_wheel(file="tqdm-4.66.2-py3-none-any.whl"), "does not match its file"),
        (
            with_sections(http=LockedHttp("https://example.org/a", "beef", 3)),
            "has an invalid sha256",
        ),
        (with_sections(images=replace(IMAGE, digest="sha256:beef")), "invalid digest"),
        (with_sections(images=replace(IMAGE, digest=HASH)), "invalid digest"),
        (
            replace(
                LOCKED_IMAGE,
                base=replace(LOCKED_IMAGE.base, image=replace(IMAGE, digest="sha256:")),
            ),
            "invalid digest",
        ),
    ],
)
def test_each_hash_and_path_of_a_lock_is_checked_alone(lock: FunctionLock, says: str) -> None:
    with pytest.raises(LockError, match=says):
        read_lock(write_lock(Lock({"build": lock})), "danlu.lock")


def test_sdist_file_names_state_no_version_to_compare() -> None:
    lock = Lock({"build": with_wheel(source="sdist", file="whatever.tar.gz")})
    assert read_lock(write_lock(lock), "danlu.lock") == lock


def test_a_written_lock_reads_back_equal() -> None:
    lock = Lock({"build": FULL, "serve": replace(FULL, packages=())})
    assert read_lock(write_lock(lock), "danlu.lock") == lock


def test_an_image_base_is_written_and_read() -> None:
    base = LockedBase("i", 1, image=LockedImage("debian:12", f"sha256:{HASH}"), python="3.11.2")
    lock = Lock({"build": FunctionLock("linux/amd64", base)})
    assert read_lock(write_lock(lock), "danlu.lock") == lock


def test_one_more_package_is_one_more_line() -> None:
    more = replace(FULL, packages=(WHEEL, replace(WHEEL, name="zipp", file="zipp-4.66.1-x.whl")))
    before = write_lock(Lock({"build": FULL})).splitlines()
    after = write_lock(Lock({"build": more})).splitlines()
    assert len(after) == len(before) + 1
    (digest,) = set(before) - set(after)
    assert digest.startswith("digest = ")


@given(st.text(), st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_text_round_trips(url: str, name: str) -> None:
    lock = Lock({name: with_sections(http=LockedHttp(url, HASH, 1))})
    assert read_lock(write_lock(lock), "danlu.lock") == lock


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("version = 1", "version = 0", "version 0"),
        ("version = 1", "version = true", "version True"),
        ("version = 1", "version = ", "not valid TOML"),
        (f'sha256 = "{HASH}"', 'sha256 = "beef"', "has an invalid sha256"),
        ('version = "4.66.1"', 'version = "4.67.0"', "does not match its file"),
        ('file = "tqdm-', 'file = "../tqdm-', "invalid file name"),
        ('path = "pool/', 'path = "../pool/', "invalid path"),
        ("epoch = 1747", 'epoch = "then"', "epoch"),
        ("function.build.system]", "function.build.systems]", "unknown field systems"),
        ("[function.build]", "[functions.build]", "unknown field functions"),
        ('digest = "sha256:', 'digest = "sha257:', "invalid digest"),
        # What fits the build file's digests and itself, but was not resolved.
        ("4.66.1", "4.66.0", "was edited"),
        ('requested = ["git"]', "requested = []", "was edited"),
        (
            f', ref = "main", commit = "{"ab" * 20}"',
            f', ref = "x", commit = "{"cd" * 20}"',
            "was ed",
        ),
    ],
)
def test_an_edited_lock_is_rejected_with_a_hint(before: str, after: str, says: str) -> None:
    text = write_lock(Lock({"build": FULL}))
    assert before in text
    with pytest.raises(LockError, match=says) as caught:
        read_lock(text.replace(before, after), "danlu.lock")
    assert "git checkout HEAD -- danlu.lock" in caught.value.hint
    assert "danlu lock" in caught.value.hint


@pytest.mark.parametrize("number", range(write_lock(Lock({"build": FULL})).count("\n")))
def test_a_lock_without_a_line_is_rejected(number: int) -> None:
    lines = write_lock(Lock({"build": FULL})).splitlines(keepends=True)
    without = "".join(lines[:number] + lines[number + 1 :])
    harmless = lines[number].startswith(("#", "digest = ", "\n"))
    if harmless:
        assert read_lock(without, "danlu.lock") == Lock({"build": FULL})
    else:
        with pytest.raises(LockError):
            read_lock(without, "danlu.lock")


def test_comments_and_the_order_of_a_lock_do_not_count() -> None:
    text = write_lock(Lock({"build": FULL}))
    platform = 'platform = "linux/amd64"\n'
    edited = text.replace(platform, "").replace("\ndigest", f"  # ours\n{platform}digest")
    assert edited != text
    assert read_lock(edited, "danlu.lock") == Lock({"build": FULL})


def test_a_lock_of_a_newer_danlu_is_not_given_up() -> None:
    text = write_lock(Lock({"build": FULL})).replace("version = 1", "version = 99", 1)
    with pytest.raises(LockError, match="version 99") as caught:
        read_lock(text, "danlu.lock")
    assert caught.value.hint == "upgrade danlu: a newer one wrote the file"


def test_a_wrong_hash_is_reported_with_its_line() -> None:
    text = write_lock(Lock({"build": FULL}))
    broken = text.replace(f'whl", sha256 = "{HASH}"', 'whl", sha256 = "x"')
    with pytest.raises(LockError) as caught:
        read_lock(broken, "danlu.lock")
    assert caught.value.span is not None
    assert "tqdm" in broken.splitlines()[caught.value.span.line - 1]


def test_sections_are_fields_of_the_file_and_not_a_table() -> None:
    text = write_lock(Lock({"build": FULL}))
    assert text.index("\nhttp = [") < text.index("\nimages = [") < text.index("\nincludes = [")
    assert "sections" not in text
    with pytest.raises(LockError, match="unknown field sections"):
        read_lock(text.replace("\nhttp = [", "\nsections = ["), "danlu.lock")


def test_build_requirements_are_written_and_checked() -> None:
    wheel = LockedPackage("tool", "1.0", "index", "tool-1.0-py3-none-any.whl", "a" * 64)
    built = LockedPackage("x", "1.0", "sdist", "x-1.0.tar.gz", "b" * 64, build=("tool==1.0",))
    without = LockedPackage("y", "1.0", "sdist", "y-1.0.tar.gz", "b" * 64, build=())
    base = LockedBase(inputs="", epoch=0)
    function = FunctionLock("linux/amd64", base, packages=(built, without), build_packages=(wheel,))
    text = write_lock(Lock({"build": function}))
    assert read_lock(text, "danlu.lock").functions["build"] == function
    with pytest.raises(LockError, match=r"x is built with tool==2\.0, which is missing"):
        read_lock(text.replace('["tool==1.0"]', '["tool==2.0"]'), "danlu.lock")
