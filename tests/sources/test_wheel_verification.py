"""Files of an unpacked wheel are compared with the hashes in its RECORD."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from danlu.graph.ops import InstallScheme
from danlu.sources.pypi.dist_info import RecordRow
from danlu.sources.pypi.split_wheels import InstalledDistribution
from danlu.sources.pypi.verification import examine_tree

SITE = "lib/python3.11/site-packages"
SCHEME = InstallScheme("/opt/venv", "3.11", SITE, "/opt/venv/bin/python")
INFO = f"{SITE}/mine-1.0.dist-info"


def encode_hash(data: bytes, algorithm: str) -> str:
    digest = hashlib.new(algorithm, data).digest()
    return f"{algorithm}={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def write_wheel(tree: Path, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        place = tree / "opt/venv" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


def describe(rows: dict[str, str]) -> InstalledDistribution:
    records = {path: RecordRow(path, found) for path, found in rows.items()}
    return InstalledDistribution("mine", "1.0", SITE, INFO, records)


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
def test_changed_file_does_not_match(tmp_path: Path, algorithm: str) -> None:
    path = f"{SITE}/mine.py"
    distribution = describe({path: encode_hash(b"good", algorithm)})
    write_wheel(tmp_path, {path: b"good"})
    good = examine_tree(tmp_path, distribution, SCHEME, ())
    assert (good.mismatched, good.unverified) == ((), ())
    write_wheel(tmp_path, {path: b"evil"})
    evil = examine_tree(tmp_path, distribution, SCHEME, ())
    assert (evil.mismatched, evil.unverified) == ((f"opt/venv/{path}",), ())
    assert evil.digest != good.digest


def test_file_without_a_strong_hash_is_unverified(tmp_path: Path) -> None:
    rows = {
        f"{SITE}/weak.py": encode_hash(b"evil", "md5"),
        f"{SITE}/none.py": "",
        f"{SITE}/absent.py": encode_hash(b"x", "sha256"),
    }
    write_wheel(
        tmp_path,
        {f"{SITE}/{name}.py": b"x" for name in ("weak", "none", "unlisted")}
        | {f"{INFO}/RECORD": b"", f"{INFO}/INSTALLER": b"uv", f"{SITE}/__pycache__/a.pyc": b""},
    )
    found = examine_tree(tmp_path, describe(rows), SCHEME, ())
    assert found.mismatched == ()
    assert found.unverified == tuple(
        f"opt/venv/{SITE}/{name}.py" for name in ("absent", "none", "unlisted", "weak")
    )


@pytest.mark.parametrize(
    "name",
    ["INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_build.json", "uv_cache.json"],
)
def test_notes_of_the_installer_are_not_content(tmp_path: Path, name: str) -> None:
    write_wheel(tmp_path, {f"{SITE}/mine.py": b"x"})
    before = examine_tree(tmp_path, describe({}), SCHEME, ())
    write_wheel(tmp_path, {f"{INFO}/{name}": b"x"})
    assert examine_tree(tmp_path, describe({}), SCHEME, ()) == before


def test_scripts_of_the_installer_are_no_evidence(tmp_path: Path) -> None:
    launcher, script = "bin/run", "bin/tool"
    entry_points = b"[console_scripts]\nrun = mine:main\n"
    rows = {
        script: encode_hash(b"#!/build/python\nx", "sha256"),
        launcher: encode_hash(b"other", "sha256"),
        f"{INFO}/entry_points.txt": encode_hash(entry_points, "sha256"),
    }
    write_wheel(
        tmp_path,
        {
            script: b"#!/build/python\nx",
            launcher: b"#!/build/python\nimport mine",
            f"{INFO}/entry_points.txt": entry_points,
        },
    )
    found = examine_tree(tmp_path, describe(rows), SCHEME, ("/build/python",))
    assert found.mismatched == ()
    assert found.unverified == (f"opt/venv/{script}",)


def test_digest_covers_path_content_and_executable_bit(tmp_path: Path) -> None:
    path = f"{SITE}/mine.py"
    digests = set()
    for number, (name, data, mode) in enumerate(
        ((path, b"1", 0o644), (path, b"2", 0o644), (path, b"1", 0o755), (f"{SITE}/b", b"1", 0o644))
    ):
        tree = tmp_path / str(number)
        write_wheel(tree, {name: data})
        (tree / "opt/venv" / name).chmod(mode)
        digests.add(examine_tree(tree, describe({}), SCHEME, ()).digest)
    assert len(digests) == 4
