from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from danlu.oci.overlay import is_opaque
from danlu.sandbox.finalize_upper import finalize_upper
from danlu.util.files import remove_tree
from tests.sandbox.trees import GONE, write

EPOCH = 1_700_000_000


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_volatile_files_are_removed_and_directories_kept(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "etc/.pwd.lock": "",
            "etc/passwd": "kept",
            "etc/passwd-": "old",
            "etc/ssh/ssh_host_ed25519_key": "private",
            "etc/ssh/ssh_host_ed25519_key.pub": "public",
            "etc/ssh/sshd_config": "kept",
            "etc/ssl/private/ssl-cert-snakeoil.key": "private",
            "etc/ssl/certs/ssl-cert-snakeoil.pem": "random",
            "run/lock/": "",
            "run/link": "->lock",
            "run/service/pid": "x",
            "tmp/x": "x",
            "usr/bin/x": "kept",
            "var/cache/apt/archives/partial/": "",
            "var/cache/apt/pkgcache.bin": "x",
            "var/cache/debconf/config.dat": "kept",
            "var/cache/debconf/config.dat-old": "x",
            "var/cache/ldconfig/aux-cache": "x",
            "var/lib/apt/extended_states": "kept",
            "var/lib/apt/lists/x_InRelease": "x",
            "var/lib/dbus/machine-id": "123",
            "var/lib/dpkg/lock-frontend": "",
            "var/lib/dpkg/status": "kept",
            "var/lib/dpkg/status-old": "x",
            "var/lib/texmf/web2c/pdftex/latex.fmt": "kept",
            "var/lib/texmf/web2c/pdftex/latex.log": "x",
            "var/lib/texmf/web2c/updmap.log": "x",
            "var/log/apt/term.log": "x",
            "var/log/nginx/": "",
            "var/tmp/x": "x",
        },
    )
    finalize_upper(tmp_path, EPOCH)
    files = [name for name in names(tmp_path) if (tmp_path / name).is_file()]
    assert not (tmp_path / "run/link").is_symlink()
    assert files == [
        "etc/passwd",
        "etc/ssh/sshd_config",
        "usr/bin/x",
        "var/cache/debconf/config.dat",
        "var/lib/apt/extended_states",
        "var/lib/dpkg/status",
        "var/lib/texmf/web2c/pdftex/latex.fmt",
    ]
    assert {"var/log/nginx", "var/log/apt", "var/cache/apt/archives/partial", "tmp"} < set(
        names(tmp_path)
    )
    assert {"run/lock", "run/service"} < set(names(tmp_path))


def test_whiteouts_of_volatile_files_are_removed(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "var/log/": "opaque",
            "var/log/dpkg.log": GONE,
            "var/log/apt": GONE,
            "etc/passwd-": GONE,
            "etc/motd": GONE,
            "tmp/": "opaque",
            "tmp/x": GONE,
        },
    )
    finalize_upper(tmp_path, EPOCH)
    assert names(tmp_path) == ["etc", "etc/motd", "tmp", "var", "var/log"]
    assert not is_opaque(str(tmp_path / "var/log"))
    assert not is_opaque(str(tmp_path / "tmp"))


def test_machine_id_is_emptied(tmp_path: Path) -> None:
    write(tmp_path, {"etc/machine-id": "0123456789abcdef\n"})
    finalize_upper(tmp_path, EPOCH)
    assert (tmp_path / "etc/machine-id").read_text() == ""


def test_times_after_the_epoch_are_set_to_it_and_older_ones_kept(tmp_path: Path) -> None:
    write(tmp_path, {"usr/new": "x", "usr/old": "x", "usr/link": "->/nowhere"})
    os.utime(tmp_path / "usr/old", (1000, 1000))
    finalize_upper(tmp_path, EPOCH)
    times = {name: (tmp_path / name).lstat().st_mtime for name in names(tmp_path)}
    assert times == {"usr": EPOCH, "usr/link": EPOCH, "usr/new": EPOCH, "usr/old": 1000}
    assert tmp_path.stat().st_mtime == EPOCH


def test_links_created_by_a_step_are_not_followed(tmp_path: Path) -> None:
    outside = write(
        tmp_path / "machine", {"log/kept": "k", "cache/apt/kept": "k", "machine-id": "id", "x": "k"}
    )
    times = {path: path.stat().st_mtime for path in outside.rglob("*")}
    upper = write(
        tmp_path / "upper",
        {
            "var": f"->{outside}",
            "run": f"->{outside}",
            "etc/machine-id": f"->{outside}/machine-id",
            "etc/ssh": f"->{outside}",
            "tmp/link": f"->{outside}",
            "home": f"->{outside}/x",
        },
    )
    finalize_upper(upper, 1)
    assert {path: path.stat().st_mtime for path in outside.rglob("*")} == times
    assert (outside / "machine-id").read_text() == "id"
    assert names(upper) == ["etc", "etc/machine-id", "etc/ssh", "home", "run", "tmp", "var"]


def test_directories_without_permissions_are_emptied_too(tmp_path: Path) -> None:
    write(tmp_path, {"tmp/shut/in/x": "x"})
    (tmp_path / "tmp/shut/in").chmod(0)
    (tmp_path / "tmp/shut").chmod(0)
    finalize_upper(tmp_path, EPOCH)
    assert names(tmp_path) == ["tmp"]


def test_tree_of_any_depth_is_finalized(tmp_path: Path) -> None:
    deep = tmp_path / "usr"
    for _ in range(15):
        deep = deep / "/".join(["d"] * 80)
        deep.mkdir(parents=True)
    finalize_upper(tmp_path, EPOCH)
    assert deep.stat().st_mtime == EPOCH
    # pytest's own way of removing old directories recurses, and would fail in a later run.
    remove_tree(tmp_path / "usr")


def test_sockets_are_removed(tmp_path: Path) -> None:
    write(tmp_path, {"root/x": "x"})
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        with socket.socket(socket.AF_UNIX) as result:
            result.bind("root/agent")
    finally:
        os.chdir(here)
    finalize_upper(tmp_path, EPOCH)
    assert names(tmp_path) == ["root", "root/x"]


FILE_LIST = b"""% ls-R -- filename database for kpathsea; do not change this line.

./:
.:
web2c
fonts
ls-R

./web2c:
pdftex
b:

./web2c/pdftex:

./fonts:
x
"""
SORTED = b"""% ls-R -- filename database for kpathsea; do not change this line.

./:
.:
fonts
ls-R
web2c

./fonts:
x

./web2c:
b:
pdftex

./web2c/pdftex:
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (FILE_LIST, SORTED),
        (SORTED, SORTED),
        (b"another file\n", b"another file\n"),
        (b"% ls-R without directories\n", b"% ls-R without directories\n"),
        (FILE_LIST[:-1], FILE_LIST[:-1]),
    ],
)
def test_the_list_of_the_files_of_a_tex_tree_is_sorted(
    tmp_path: Path, before: bytes, after: bytes
) -> None:
    file = tmp_path / "var/lib/texmf/ls-R"
    file.parent.mkdir(parents=True)
    file.write_bytes(before)
    finalize_upper(tmp_path, EPOCH)
    assert file.read_bytes() == after
