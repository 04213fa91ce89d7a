"""Files from uv's cache are used only if they match the verified wheel."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from danlu.errors import OutsideError
from danlu.graph.ops import InstallScheme, Wheel
from danlu.sources import downloads
from danlu.sources.pypi.dist_info import InvalidWheel
from danlu.store import Store
from tests.builder.wheels import SCHEME, SITE, WheelBuilder
from tests.conftest import lacking
from tests.fakes.wheels import make_wheel

OTHER_SCHEME = InstallScheme(
    "/srv/py", "3.12", "lib/python3.12/site-packages", "/srv/py/bin/python"
)

FILES: dict[str, str | bytes] = {
    "w/__init__.py": "x = 1\n" * 100,
    "w/data.bin": b"\0" * 9000,
    "w/tool": "#!/bin/sh\n",
}


@pytest.fixture
def op(builder: WheelBuilder) -> Wheel:
    """A wheel with some of everything."""
    return builder.op(make_rich_wheel(builder, {"scripts/go": "#!/bin/sh\necho go\n"}))


def make_rich_wheel(builder: WheelBuilder, data: dict[str, str | bytes]) -> Path:
    return make_wheel(
        builder.links,
        "w",
        files=FILES,
        data={**data, "headers/w.h": "int w;\n"},
        entry_points="[console_scripts]\nw-run = w:main\n",
        executable=["w/tool"],
    )


def archive_of(builder: WheelBuilder) -> Path:
    """The one unpacked wheel in uv's cache."""
    (archive,) = (builder.paths.cache / "uv").glob("archive-v*/*")
    return archive


def forget_layers(builder: WheelBuilder) -> None:
    builder.store.collect(0)


def forget_notes(builder: WheelBuilder) -> None:
    for note in (builder.paths.cache / "uv/fetched").iterdir():
        note.write_bytes(b"")


def truncate_file(archive: Path) -> None:
    os.truncate(archive / "w/__init__.py", 0)


def edit_in_place(archive: Path) -> None:
    with (archive / "w/data.bin").open("r+b") as file:
        file.write(b"x")


def remove_file(archive: Path) -> None:
    (archive / "w/data.bin").unlink()


def add_file(archive: Path) -> None:
    (archive / "w/more.py").write_text("evil = 1\n")


def take_executable_bit(archive: Path) -> None:
    (archive / "w/tool").chmod(0o644)


def edit_script(archive: Path) -> None:
    script = archive / "w-1.0.data/scripts/go"
    script.write_text(script.read_text().replace("go", "no"))


def empty_record(archive: Path) -> None:
    os.truncate(archive / "w-1.0.dist-info/RECORD", 0)


def cut_record(archive: Path) -> None:
    os.truncate(archive / "w-1.0.dist-info/RECORD", 70)


def corrupt_record(archive: Path) -> None:
    (archive / "w-1.0.dist-info/RECORD").write_bytes(b"\xff\xfe,\0")


def empty_metadata(archive: Path) -> None:
    os.truncate(archive / "w-1.0.dist-info/METADATA", 0)


def empty_wheel_file(archive: Path) -> None:
    os.truncate(archive / "w-1.0.dist-info/WHEEL", 0)


def remove_entry_points(archive: Path) -> None:
    (archive / "w-1.0.dist-info/entry_points.txt").unlink()


def remove_archive(archive: Path) -> None:
    archive.rename(archive.parent.parent / "elsewhere")


def forge_record(archive: Path) -> None:
    """Edit a file and RECORD with it, so that the two agree."""
    file, record = archive / "w/__init__.py", archive / "w-1.0.dist-info/RECORD"
    old, new = (
        base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
        for data in (file.read_bytes(), b"forged = True\n" * 40)
    )
    file.write_bytes(b"forged = True\n" * 40)
    assert old in record.read_bytes()
    record.write_bytes(record.read_bytes().replace(old, new).replace(b",600", b",560"))


Damage = Callable[[Path], None]

DAMAGES: list[Damage] = [
    truncate_file,
    edit_in_place,
    remove_file,
    add_file,
    edit_script,
    empty_record,
    cut_record,
    corrupt_record,
    empty_metadata,
    empty_wheel_file,
    remove_entry_points,
    remove_archive,
]
"""What RECORD alone shows, or uv itself."""

FORGED: list[Damage] = [forge_record, take_executable_bit]
"""What only a comparison with what was verified shows."""


@pytest.mark.parametrize("damage", DAMAGES + FORGED, ids=lambda damage: damage.__name__)
def test_known_layer_is_recreated_correctly_from_a_damaged_cache(
    builder: WheelBuilder, op: Wheel, damage: Damage
) -> None:
    (before,) = builder.build(op)
    forget_layers(builder)
    damage(archive_of(builder))
    (again,) = builder.build(op)
    assert again.diff_id == before.diff_id
    assert (again.tree / SITE / "w/__init__.py").read_text() == FILES["w/__init__.py"]
    assert builder.store.check() == []
    forget_layers(builder)
    assert builder.build(op)[0].diff_id == before.diff_id, "the damage is not kept"


@pytest.mark.parametrize("damage", DAMAGES + FORGED, ids=lambda damage: damage.__name__)
def test_layer_of_another_scheme_is_created_correctly_from_a_damaged_cache(
    builder: WheelBuilder, op: Wheel, damage: Damage
) -> None:
    other = replace(op, scheme=OTHER_SCHEME)
    (expected,) = builder.build(other)
    builder.build(op)
    for note in (builder.paths.cache / "uv/fetched").iterdir():
        known = json.loads(note.read_bytes())
        assert len(known["layers"]) == 2
        # Only what the wheel holds is known now, none of its layers.
        note.write_text(json.dumps({"contents": known["contents"]}))
    forget_layers(builder)
    damage(archive_of(builder))
    assert builder.build(other)[0].diff_id == expected.diff_id


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_record_alone_shows_damage_after_a_first_build_that_was_killed(
    builder: WheelBuilder, op: Wheel, damage: Damage
) -> None:
    (before,) = builder.build(op)
    forget_layers(builder)
    forget_notes(builder)
    damage(archive_of(builder))
    assert builder.build(op)[0].diff_id == before.diff_id


def test_diff_id_alone_shows_damage(builder: WheelBuilder, op: Wheel) -> None:
    (before,) = builder.build(op)
    (note,) = (builder.paths.cache / "uv/fetched").iterdir()
    note.write_text(json.dumps({"layers": json.loads(note.read_bytes())["layers"]}))
    forget_layers(builder)
    forge_record(archive_of(builder))
    assert builder.build(op)[0].diff_id == before.diff_id


@pytest.mark.parametrize("notes", ["kept", "lost"])
def test_sound_cache_is_used_and_nothing_is_fetched(
    builder: WheelBuilder, op: Wheel, notes: str
) -> None:
    (before,) = builder.build(op)
    forget_layers(builder)
    if notes == "lost":
        forget_notes(builder)
    assert builder.build(op)[0].diff_id == before.diff_id
    assert builder.build(replace(op, scheme=OTHER_SCHEME))[0].diff_id != before.diff_id
    assert builder.lines == []


def test_note_that_is_wrong_is_replaced_after_one_more_fetch(
    builder: WheelBuilder, op: Wheel
) -> None:
    (before,) = builder.build(op)
    (note,) = (builder.paths.cache / "uv/fetched").iterdir()
    right = note.read_bytes()
    layers = dict.fromkeys(json.loads(right)["layers"], "sha256:" + "0" * 64)
    note.write_text(json.dumps({"contents": "0" * 64, "layers": layers}))
    forget_layers(builder)
    assert builder.build(op)[0].diff_id == before.diff_id
    assert note.read_bytes() == right


def test_edit_of_a_layer_in_place_does_not_survive_its_repair(
    builder: WheelBuilder, op: Wheel
) -> None:
    """The issue's own case: the layer's inodes may be those of uv's cache."""
    (before,) = builder.build(op)
    os.truncate(before.tree / SITE / "w/__init__.py", 0)
    assert {finding.kind for finding in builder.store.check(repair=True)} >= {"layer-damaged"}
    (again,) = builder.build(op)
    assert again.diff_id == before.diff_id
    assert (again.tree / SITE / "w/__init__.py").read_text() == FILES["w/__init__.py"]
    assert builder.store.check() == []


def test_damaged_layer_is_replaced_by_a_build_without_the_cache(
    builder: WheelBuilder, op: Wheel
) -> None:
    """Skip check and repair: the layer's row still marks it as complete."""
    (before,) = builder.build(op)
    os.truncate(before.tree / SITE / "w/__init__.py", 0)
    (again,) = builder.build(op)
    assert again.diff_id == before.diff_id
    assert (again.tree / SITE / "w/__init__.py").read_text() == FILES["w/__init__.py"]
    assert {finding.kind for finding in builder.store.check()} <= {"tree-unknown"}


def test_damaged_cache_offline_is_reported(builder: WheelBuilder, op: Wheel) -> None:
    builder.build(op)
    forget_layers(builder)
    truncate_file(archive_of(builder))
    with pytest.raises(OutsideError, match=r"copy of w 1\.0 is damaged .* and --offline") as caught:
        builder.build(op, offline=True)
    assert "without --offline" in caught.value.hint


def test_damaged_cache_of_a_wheel_that_is_gone_is_an_error(
    builder: WheelBuilder, op: Wheel
) -> None:
    builder.build(op)
    forget_layers(builder)
    truncate_file(archive_of(builder))
    (builder.links / op.file).unlink()
    with pytest.raises(OutsideError, match="no longer have"):
        builder.build(op)
    assert builder.store.usage().layers == 0


def test_only_the_damaged_wheel_is_fetched_again(builder: WheelBuilder, op: Wheel) -> None:
    friend = builder.op(make_wheel(builder.links, "friend", files={"friend.py": "1"}))
    before = [layer.diff_id for layer in builder.build(friend, op)]
    forget_layers(builder)
    for archive in (builder.paths.cache / "uv").glob("archive-v*/*"):
        if (archive / "w").is_dir():
            truncate_file(archive)
    assert [layer.diff_id for layer in builder.build(friend, op)] == before
    assert builder.lines == [
        "the package cache's copy of w 1.0 is damaged; fetching it again",
    ]


def test_script_whose_first_line_uv_rewrites_is_verified_too(builder: WheelBuilder) -> None:
    """uv records the hash of the script that it generated, whatever its source was."""
    op = builder.op(make_rich_wheel(builder, {"scripts/go": "#!python\nprint('go')\n"}))
    (before,) = builder.build(op)
    assert builder.lines == [
        "the package cache's copy of w 1.0 cannot be verified; fetching it again"
    ]
    for note in ("unknown", "known"):
        forget_layers(builder)
        if note == "unknown":
            forget_notes(builder)
        edit_script(archive_of(builder))
        assert builder.build(op)[0].diff_id == before.diff_id
        forget_layers(builder)
        builder.build(op)  # into the cache again


def test_wheel_whose_record_has_wrong_hashes_is_refused(builder: WheelBuilder) -> None:
    def falsify_record(path: Path, record: bytes) -> bytes:
        digest = base64.urlsafe_b64encode(hashlib.sha256(b"truth").digest()).rstrip(b"=")
        return record.replace(digest, digest[::-1])

    path = make_wheel(builder.links, "liar", files={"liar.py": b"truth"})
    rewrite_record(path, falsify_record)
    wheel = builder.op(path)
    for _ in range(2):
        with pytest.raises(InvalidWheel, match=r"liar-1\.0.*do not match its RECORD") as caught:
            builder.build(wheel)
        assert "liar.py" in caught.value.details[0]
        assert "--no-binary liar" in caught.value.hint


@pytest.mark.parametrize("change", ["unlisted", "no hash", "weak hash", "sha512", "ghost"])
def test_wheel_with_a_careless_record_is_the_same_from_the_cache(
    builder: WheelBuilder, change: str
) -> None:
    def edit(path: Path, record: bytes) -> bytes:
        rows = [row.split(b",") for row in record.splitlines()]
        for row in rows:
            if row[0] == b"c.py" and change == "no hash":
                row[1:] = [b"", b""]
            elif row[0] == b"c.py" and change == "weak hash":
                row[1] = b"md5=xx"
            elif row[0] == b"c.py" and change == "sha512":
                digest = base64.urlsafe_b64encode(hashlib.sha512(b"c").digest()).rstrip(b"=")
                row[1] = b"sha512=" + digest
        return b"".join(b",".join(row) + b"\n" for row in rows)

    path = make_wheel(
        builder.links,
        "careless",
        files={"c.py": "c", "d.py": "d"},
        unlisted=["d.py"] if change == "unlisted" else [],
        more_rows=[("gone.py", "sha256=abc", "3")] if change == "ghost" else [],
    )
    rewrite_record(path, edit)
    wheel = builder.op(path)
    (before,) = builder.build(wheel)
    forget_layers(builder)
    assert builder.build(wheel)[0].diff_id == before.diff_id
    os.truncate(next((builder.paths.cache / "uv").glob("archive-v*/*/c.py")), 0)
    forget_layers(builder)
    assert builder.build(wheel)[0].diff_id == before.diff_id


def rewrite_record(path: Path, edit: Callable[[Path, bytes], bytes]) -> None:
    """Put another RECORD into a wheel."""
    import zipfile

    with zipfile.ZipFile(path) as archive:
        members = [(entry, archive.read(entry)) for entry in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in members:
            name = entry.filename
            archive.writestr(entry, edit(path, data) if name.endswith("/RECORD") else data)


def test_scheme_of_the_tests_is_another(op: Wheel) -> None:
    assert op.scheme == SCHEME != OTHER_SCHEME


@pytest.mark.real
@pytest.mark.skipif(bool(lacking("root", "mkfs.xfs")), reason=lacking("root", "mkfs.xfs"))
def test_layer_shares_no_file_with_the_cache_if_files_can_be_cloned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(400 << 20)
    subprocess.run(["mkfs.xfs", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(disk)], check=True)
    try:
        with Store.open(disk / "home" / "store") as store:
            builder = WheelBuilder(disk, store)
            op = builder.op(make_rich_wheel(builder, {}))
            (layer,) = builder.build(op)
            for damage in (edit_in_place, forge_record):
                damage(archive_of(builder))
            assert store.check() == []
            assert (layer.tree / SITE / "w/tool").stat().st_mode & 0o777 == 0o755
            assert downloads.cache_size(builder.paths.cache) > 0, "the layer has separate inodes"
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    with Store.open(tmp_path / "elsewhere" / "home" / "store") as store:
        builder = WheelBuilder(tmp_path / "elsewhere", store)
        op = builder.op(make_rich_wheel(builder, {}))
        assert builder.build(op)[0].diff_id == layer.diff_id, "hard links or clones: one digest"
