from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import resource
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danlu.errors import DanluError, MachineError, StoreError
from danlu.oci.overlay import is_whiteout
from danlu.oci.tar import (
    LayerError,
    LayerLimits,
    LayerSummary,
    TarSplit,
    extract_layer,
    extract_with_tar_split,
    rewrite_layer,
    write_layer,
)
from danlu.oci.tar.write import block_padding, encode_header
from tests.oci.trees import TreeNode, child_trees, make

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes and owners")
TYPES = {
    "file": tarfile.REGTYPE,
    "dir": tarfile.DIRTYPE,
    "link": tarfile.SYMTYPE,
    "hard": tarfile.LNKTYPE,
    "char": tarfile.CHRTYPE,
    "block": tarfile.BLKTYPE,
    "fifo": tarfile.FIFOTYPE,
}
E = tuple[str, str] | tuple[str, str, str]


def archive(entries: Iterable[E], *, kind: int = tarfile.PAX_FORMAT, pax: object = None) -> bytes:
    """A tar of (kind, name, content or target) entries."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=kind) as tar:
        for what, name, *rest in entries:
            info = tarfile.TarInfo(name)
            info.type = TYPES[what]
            info.mode = 0o755 if what == "dir" else 0o644
            text = rest[0] if rest else ""
            data = None
            if what == "file":
                info.size, data = len(text), io.BytesIO(text.encode())
            else:
                info.linkname = text
            if isinstance(pax, dict):
                info.pax_headers = pax
            tar.addfile(info, data)
    return stream.getvalue()


def extract(root: Path, *entries: E) -> LayerSummary:
    root.mkdir(exist_ok=True)
    return extract_layer(io.BytesIO(archive(entries)), root)


def paths(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.parametrize(
    "entries",
    [
        [("file", "/etc/x", "1")],
        [("file", "../x", "1")],
        [("file", "a/../../x", "1")],
        [("dir", "..")],
        [("link", "out", "../.."), ("file", "out/x", "1")],
        [("link", "out", "../../tmp"), ("file", "out/x", "1")],
        [("link", "a", "b"), ("link", "b", "a"), ("file", "a/x", "1")],
        [("link", "a", "b/../.."), ("dir", "b"), ("file", "a/x", "1")],
        [("hard", "a", "../x")],
        [("hard", "a", "/etc/passwd")],
        [("hard", "a", "missing")],
        [("hard", "a", "a")],
        [("dir", "d"), ("hard", "a", "d")],
        [("link", "l", "../../../../../../etc"), ("hard", "a", "l/passwd")],
        [("char", "null")],
        [("block", "sda")],
        [("file", ".", "1")],
        [("link", "./", "/")],
        [("file", "f", "1"), ("file", "f/x", "1")],
        [("file", ".wh.", "")],
        [("file", ".wh...", "")],
        [("file", ".wh..", "")],
        [("file", "n" * 256, "")],
        [("file", "d/" * 2100 + "f", "")],
    ],
)
def test_forbidden_layer_content_is_rejected(tmp_path: Path, entries: list[E]) -> None:
    (tmp_path / "x").write_text("outside")
    with pytest.raises(LayerError):
        extract(tmp_path / "root", *entries)
    assert paths(tmp_path) - {"x"} <= {"root"} | {
        f"root/{path}" for path in paths(tmp_path / "root")
    }
    assert (tmp_path / "x").read_text() == "outside"


def test_symlinks_inside_the_layer_are_followed(tmp_path: Path) -> None:
    extract(
        tmp_path / "r",
        ("dir", "usr/lib"),
        ("link", "lib", "usr/lib"),
        ("link", "var", "/usr"),
        ("link", "usr/lib/up", "../../usr/./lib"),
        ("file", "lib/a", "1"),
        ("file", "var/lib/b", "2"),
        ("file", "usr/lib/up/c", "3"),
    )
    assert {path.name for path in (tmp_path / "r/usr/lib").iterdir()} == {"a", "b", "c", "up"}


def test_dangling_and_absolute_symlinks_are_kept_as_content(tmp_path: Path) -> None:
    extract(tmp_path / "r", ("link", "a", "/etc/passwd"), ("link", "b", "../../../x"))
    assert os.readlink(tmp_path / "r/a") == "/etc/passwd"
    assert os.readlink(tmp_path / "r/b") == "../../../x"


def test_file_replaces_a_symlink_without_writing_through_it(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("outside")
    extract(tmp_path / "r", ("link", "a", str(tmp_path / "x")), ("file", "a", "inside"))
    assert (tmp_path / "x").read_text() == "outside"
    assert (tmp_path / "r/a").read_text() == "inside"


def test_cached_directory_is_dropped_when_a_symlink_on_its_path_is_replaced(tmp_path: Path) -> None:
    extract(
        tmp_path / "r",
        ("dir", "a"),
        ("dir", "b"),
        ("link", "l", "a"),
        ("file", "l/1", ""),
        ("link", "l", "b"),
        ("file", "l/2", ""),
        ("file", "l", "now a file"),
        ("dir", "l"),
        ("file", "l/3", ""),
    )
    assert paths(tmp_path / "r") == {"a", "b", "l", "a/1", "b/2", "l/3"}


def test_file_replaces_a_directory_and_its_content(tmp_path: Path) -> None:
    extract(tmp_path / "r", ("file", "d/e/f", "1"), ("file", "d", "2"), ("dir", "g"))
    assert paths(tmp_path / "r") == {"d", "g"}


@pytest.fixture(params=["device", "attribute"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The form of deletions on disk; tests/sandbox/test_overlay.py has a real overlay."""

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EPERM, "an overlay makes no device 0/0")

    if request.param == "attribute":
        monkeypatch.setattr(os, "mknod", refuse)
    return str(request.param)


@needs_root
def test_oci_whiteouts_become_overlayfs_whiteouts(tmp_path: Path, form: str) -> None:
    extract(
        tmp_path / "r",
        ("file", "d/.wh.gone", ""),
        ("file", "o/.wh..wh..opq", ""),
        ("file", "o/.wh..wh.plnk", ""),
        ("file", ".wh..wh..opq", ""),
    )
    assert paths(tmp_path / "r") == {"d", "d/gone", "o"}
    status = (tmp_path / "r/d/gone").lstat()
    assert is_whiteout(str(tmp_path / "r/d/gone"), status)
    assert stat.S_ISCHR(status.st_mode) == (form == "device")
    assert os.getxattr(tmp_path / "r/o", "user.overlay.opaque") == b"y"
    assert os.getxattr(tmp_path / "r", "user.overlay.opaque") == b"y"


@needs_root
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.usefixtures("form")
def test_whiteout_never_hides_entries_of_its_own_layer(tmp_path: Path, order: int) -> None:
    pairs: list[list[E]] = [
        [("file", ".wh.f", ""), ("file", "f", "new")],
        [("file", ".wh.d", ""), ("file", "d/x", "new")],
        [("file", ".wh.e", ""), ("dir", "e")],
    ]
    entries = [entry for pair in pairs for entry in pair[::order]]
    extract(tmp_path / "r", *entries)
    assert paths(tmp_path / "r") == {"f", "d", "d/x", "e"}
    assert (tmp_path / "r/f").read_text() == "new"
    for name in ("d", "e"):
        assert os.getxattr(tmp_path / "r" / name, "user.overlay.opaque") == b"y"


@needs_root
@pytest.mark.usefixtures("form")
def test_hard_link_to_a_whiteout_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(LayerError):
        extract(tmp_path / "r", ("file", ".wh.x", ""), ("hard", "a", "x"))


@needs_root
@pytest.mark.usefixtures("form")
def test_whiteout_in_an_opaque_directory_leaves_it_opaque(tmp_path: Path) -> None:
    entries: list[E] = [("dir", "d"), ("file", "d/.wh..wh..opq", ""), ("file", "d/.wh.x", "")]
    first = extract(tmp_path / "1", *entries)
    again = extract(tmp_path / "2", entries[0], entries[2], entries[1])
    for directory, summary in (("1", first), ("2", again)):
        assert os.getxattr(tmp_path / directory / "d", "user.overlay.opaque") == b"y"
        assert summary.files == 3
    assert write_layer(tmp_path / "1", None) == write_layer(tmp_path / "2", None)


def test_overlayfs_xattrs_in_a_layer_are_ignored(tmp_path: Path) -> None:
    data = archive(
        [("dir", "d"), ("file", "f", "1")],
        pax={
            "SCHILY.xattr.user.overlay.opaque": "y",
            "SCHILY.xattr.user.overlay.redirect": "/etc",
            "SCHILY.xattr.trusted.overlay.redirect": "/etc",
            "SCHILY.xattr.security.selinux": "x",
            "SCHILY.xattr.user.mine": "kept",
        },
    )
    extract_layer(io.BytesIO(data), tmp_path)
    assert os.listxattr(tmp_path / "d") == ["user.mine"]
    assert os.listxattr(tmp_path / "f") == ["user.mine"]


@needs_root
def test_modes_owners_and_times_are_kept(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind in (("d", tarfile.DIRTYPE), ("d/su", tarfile.REGTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.uid, info.gid = kind, 0o4555, 1234, 4_000_000
            info.pax_headers = {"mtime": "1600000000.123456789"}
            tar.addfile(info)
    extract_layer(io.BytesIO(stream.getvalue()), tmp_path)
    for name in ("d", "d/su"):
        status = (tmp_path / name).stat()
        assert status.st_mode & 0o7777 == 0o4555
        assert (status.st_uid, status.st_gid) == (1234, 4_000_000)
        assert status.st_mtime_ns == 1_600_000_000_123_456_789


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_ustar_pax_and_gnu_formats_are_read(tmp_path: Path, kind: int) -> None:
    long = "d" * 90 + "/" + "e" * 60
    data = archive([("file", long, "1"), ("link", "l", "t" * 90)], kind=kind)
    extract_layer(io.BytesIO(data), tmp_path)
    assert (tmp_path / long).read_text() == "1"
    assert os.readlink(tmp_path / "l") == "t" * 90


def test_digest_covers_padding_after_the_end(tmp_path: Path) -> None:
    data = archive([("file", "a", "1")])
    summary = extract_layer(io.BytesIO(data), tmp_path)
    two = extract_layer(io.BytesIO(data + bytes(5)), tmp_path)
    assert (summary.size, two.size) == (len(data), len(data) + 5)
    assert summary.diff_id != two.diff_id


def test_layer_above_the_limits_is_rejected(tmp_path: Path) -> None:
    data = archive([("file", "a", "1"), ("file", "b", "1" * 5000)])
    with pytest.raises(LayerError, match="exceeds the limit of"):
        extract_layer(io.BytesIO(data), tmp_path, limits=LayerLimits(entries=1))
    with pytest.raises(LayerError, match="exceeds the limit of"):
        extract_layer(io.BytesIO(data), tmp_path, limits=LayerLimits(size=3000))


def test_endless_padding_is_rejected(tmp_path: Path) -> None:
    class EndlessStream:
        sent = 0

        def read(self, size: int, /) -> bytes:
            self.sent += size
            assert self.sent < 1 << 30
            return bytes(size)

    with pytest.raises(LayerError, match="exceeds the limit of"):
        extract_layer(EndlessStream(), tmp_path, limits=LayerLimits(size=1 << 24))


@settings(deadline=None)
@given(st.data())
def test_damaged_layer_raises_only_danlu_errors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = archive(
        [("file", "é" * 60, "1" * 700), ("dir", "d"), ("link", "d/l", "x" * 200)],
        pax={"mtime": "5.5", "SCHILY.xattr.user.a": "1"},
    )
    cut = data.draw(st.integers(0, len(whole)))
    damaged = bytearray(whole[:cut])
    for at in data.draw(st.lists(st.integers(0, max(cut - 1, 0)), max_size=3)):
        if at < cut:
            damaged[at] = data.draw(st.integers(0, 255))
            # A damage that the check sum does not see, as a hostile writer would make it.
            block = at - at % 512
            if block + 512 <= cut:
                head = damaged[block : block + 512]
                total = sum(head) - sum(head[148:156]) + 256
                damaged[block + 148 : block + 156] = b"%06o\0 " % total
    with contextlib.suppress(DanluError):
        extract_layer(io.BytesIO(bytes(damaged)), tmp_path_factory.mktemp("r"))


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_extracted_tar_is_reproduced_from_its_tree(tmp_path: Path, kind: int) -> None:
    data = (
        archive(
            [
                ("dir", "./"),
                ("file", "./b/" + "n" * 90, "1" * 600),
                ("dir", "a/"),
                ("link", "l", "a"),
                ("file", "l/through", "2"),
                ("file", "twice", "first"),
                ("file", "twice", "second!"),
                ("file", "d/e/f", "3"),
                ("hard", "same", "twice"),
                ("file", "d", "4"),
            ],
            kind=kind,
        )
        + b"after the end"
    )
    extracted = extract_with_tar_split(io.BytesIO(data), tmp_path)
    assert extracted.recipe is not None
    recipe = TarSplit.from_builtins(json.loads(json.dumps(extracted.recipe.to_builtins())))
    out = io.BytesIO()
    assert rewrite_layer(tmp_path, out.write, recipe).diff_id == extracted.summary.diff_id
    assert out.getvalue() == data
    (tmp_path / "twice").write_text("sEcond!")
    assert rewrite_layer(tmp_path, None, recipe).diff_id != extracted.summary.diff_id
    (tmp_path / "twice").unlink()
    with pytest.raises(StoreError):
        rewrite_layer(tmp_path, None, recipe)


@needs_root
@settings(deadline=None, max_examples=60)
@given(child_trees())
def test_any_layer_is_reproduced_from_its_tar_split(tree: Mapping[bytes, TreeNode]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        first, second = Path(directory, "1"), Path(directory, "2")
        first.mkdir()
        second.mkdir()
        make(first, tree)
        stream, again = io.BytesIO(), io.BytesIO()
        write_layer(first, stream.write)
        extracted = extract_with_tar_split(io.BytesIO(stream.getvalue()), second)
        assert extracted.recipe is not None
        rewrite_layer(second, again.write, extracted.recipe)
        assert again.getvalue() == stream.getvalue()


@pytest.mark.parametrize("evil", ["\x1b[2J", "a\nerror: fake", "\udcff"])
def test_names_in_errors_cannot_contain_control_sequences(tmp_path: Path, evil: str) -> None:
    data = archive([("char", f"x{evil}y")], kind=tarfile.GNU_FORMAT)
    with pytest.raises(LayerError) as caught:
        extract_layer(io.BytesIO(data), tmp_path)
    assert str(caught.value).isprintable()
    str(caught.value).encode()


def test_too_deeply_nested_layer_is_rejected(tmp_path: Path) -> None:
    deep = "a/" * 300
    with pytest.raises(LayerError, match="deep"):
        extract(tmp_path / "r", ("file", "a/" * 500 + "f", ""))
    with pytest.raises(LayerError, match="deep"):
        extract(tmp_path / "s", ("dir", deep), ("link", "l", deep), ("file", f"l/{deep}f", ""))


def test_oversized_extension_headers_are_rejected(tmp_path: Path) -> None:
    pax = encode_header(b"x", b"x", mode=0, size=12) + b"12 comment=\n" + bytes(500)
    with pytest.raises(LayerError, match="too many extension headers"):
        extract_layer(io.BytesIO(pax * 100), tmp_path)
    chunks = []
    for number in range(10):
        record = f"{number}=".encode() + b"v" * 200_000
        body = b"200009 " + record + b"\n"
        body = str(len(body)).encode() + body[6:]
        chunks.append(
            encode_header(b"x", b"g", mode=0, size=len(body)) + body + block_padding(len(body))
        )
    with pytest.raises(LayerError, match="global extension headers"):
        extract_layer(io.BytesIO(b"".join(chunks)), tmp_path)


def test_data_after_the_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    class LongStream:
        remaining = 1 << 28

        def read(self, size: int, /) -> bytes:
            size = min(size, self.remaining)
            self.remaining -= size
            return bytes(size)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    extracted = extract_with_tar_split(LongStream(), tmp_path)
    assert extracted.recipe is not None
    assert len(extracted.recipe.records) < 1 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_xattrs_that_do_not_fit_are_not_reported_as_a_full_disk(tmp_path: Path) -> None:
    data = archive([("file", "f", "")], pax={"SCHILY.xattr.user.big": "v" * 65_000})
    (tmp_path / "probe").touch()
    try:
        os.setxattr(tmp_path / "probe", "user.big", b"v" * 65_000)
    except OSError:
        with pytest.raises(MachineError, match=r"the extended attribute user\.big"):
            extract_layer(io.BytesIO(data), tmp_path)
    else:
        extract_layer(io.BytesIO(data), tmp_path)
        assert len(os.getxattr(tmp_path / "f", "user.big")) == 65_000


def test_header_with_a_wrong_checksum_is_rejected(tmp_path: Path) -> None:
    data = bytearray(archive([("file", "name", "1")]))
    data[0] ^= 1
    with pytest.raises(LayerError, match="wrong checksum"):
        extract_layer(io.BytesIO(bytes(data)), tmp_path)
