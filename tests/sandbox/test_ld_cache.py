"""The cache of the dynamic loader, against ldconfig."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from danlu.sandbox.ld_cache import CachedLibrary, native_flags, parse_cache, render_cache

FLAGS = 0x0303


def make_library(name: str, directory: str = "/usr/lib", hwcap: int = 0) -> CachedLibrary:
    return CachedLibrary(name, f"{directory}/{name}", FLAGS, hwcap)


def test_rendered_cache_is_read_again() -> None:
    libraries = [make_library(name) for name in ("libz.so.1", "libcuda.so.1", "libcuda.so")]
    assert parse_cache(render_cache(reversed(libraries))) == libraries


def test_numbers_in_names_are_ordered_by_value() -> None:
    names = ["liba.so.10", "liba.so.9", "liba.so.2", "liba.so", "liba-b.so"]
    cache = parse_cache(render_cache(make_library(name) for name in sorted(names)))
    assert [library.name for library in cache] == names


def test_first_of_two_libraries_with_one_name_wins() -> None:
    first, second = make_library("liba.so", "/first"), make_library("liba.so", "/second")
    assert parse_cache(render_cache([first, second])) == [first, second]


def test_entries_of_the_extension_are_dropped() -> None:
    plain = make_library("liba.so")
    special = make_library("liba.so", "/usr/lib/glibc-hwcaps/x86-64-v3", hwcap=1 << 62)
    assert parse_cache(render_cache([special, plain])) == [plain]


def test_cache_after_a_table_of_the_older_format_is_read() -> None:
    libraries = [make_library("libb.so"), make_library("liba.so")]
    older = b"ld.so-1.7.0\0" + struct.pack("<I", 2) + bytes(24)
    assert parse_cache(older + render_cache(libraries)) == libraries


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ld.so-1.7.0\0\xff\xff\xff\xff",
        b"glibc-ld.so.cache1.1",
        b"glibc-ld.so.cache1.1" + b"\xff" * 200,
        render_cache([make_library("liba.so")])[:-1],
        render_cache([make_library("x" * 5000)]),
    ],
)
def test_damaged_cache_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="cache of the loader"):
        parse_cache(data)


def test_overlapping_names_are_limited() -> None:
    count = 8000
    text = b"x" * 4000 + b"\0"
    header = struct.pack("<20sIIB3xI12x", b"glibc-ld.so.cache1.1", count, len(text), 2, 0)
    entries = struct.pack("<iIIIQ", FLAGS, 48 + count * 24, 48 + count * 24, 0, 0) * count
    with pytest.raises(ValueError, match="too long"):
        parse_cache(header + entries + text)


@pytest.mark.real
@pytest.mark.needs("ldconfig")
def test_ldconfig_lists_an_added_library_among_those_of_this_machine(tmp_path: Path) -> None:
    cache = Path("/etc/ld.so.cache")
    added = CachedLibrary("libcuda.so.1", "/opt/libcuda.so.1", native_flags())
    (tmp_path / "cache").write_bytes(render_cache([added, *parse_cache(cache.read_bytes())]))

    def list_libraries(path: Path) -> set[str]:
        command = ["/sbin/ldconfig", "-p", "-C", str(path)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return {line.strip() for line in output.splitlines() if " => " in line}

    # The machine's may have entries for other processors of the family, which are not kept.
    new = list_libraries(tmp_path / "cache") - list_libraries(cache)
    assert [line.split()[-1] for line in new] == ["/opt/libcuda.so.1"]
