"""The certificates that Java trusts are the same bytes whenever and wherever they are converted."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from danlu.sandbox.finalize_upper import finalize_upper
from danlu.sandbox.java_keystore import set_keystore_dates

EPOCH = 1_700_000_000
CERTIFICATES = [(f"debian:{name}.pem", name.encode() * 99) for name in ("a", "b", "c")]


def make_keystore(
    entries: Sequence[tuple[str, bytes]], date: int, *, tag: int = 2, password: str = "changeit"
) -> bytes:
    """A keystore as ``sun.security.provider.JavaKeyStore`` writes it; ``date`` in milliseconds."""
    data = struct.pack(">III", 0xFEEDFEED, 2, len(entries))
    for alias, certificate in entries:
        data += struct.pack(">I", tag) + struct.pack(">H", len(alias)) + alias.encode()
        data += struct.pack(">Q", date) + struct.pack(">H", 5) + b"X.509"
        data += struct.pack(">I", len(certificate)) + certificate
    whitened = password.encode("utf-16-be") + b"Mighty Aphrodite" + data
    return data + hashlib.sha1(whitened).digest()


def test_dates_and_order_do_not_depend_on_the_build() -> None:
    expected = make_keystore(CERTIFICATES, EPOCH * 1000)
    for date, entries in ((1, CERTIFICATES), (2_000_000_000_123, CERTIFICATES[::-1])):
        assert set_keystore_dates(make_keystore(entries, date), EPOCH) == expected


@pytest.mark.parametrize(
    "keystore",
    [
        b"",
        b"\xfe\xed\xfe\xed",
        b"0\x82" + bytes(100),  # PKCS #12
        make_keystore(CERTIFICATES, 1, tag=1),
        make_keystore(CERTIFICATES, 1, password="another"),
        make_keystore(CERTIFICATES, 1)[:-30],
        struct.pack(">III", 0xFEEDFEED, 2, 2**32 - 1) + bytes(40),
        make_keystore(CERTIFICATES, 1) + b"more",
    ],
)
def test_other_and_damaged_keystores_stay_as_they_are(tmp_path: Path, keystore: bytes) -> None:
    assert set_keystore_dates(keystore, EPOCH) is None
    path = tmp_path / "etc/ssl/certs/java/cacerts"
    path.parent.mkdir(parents=True)
    path.write_bytes(keystore)
    finalize_upper(tmp_path, EPOCH)
    assert path.read_bytes() == keystore


def test_a_layer_has_the_dated_keystore_and_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(make_keystore(CERTIFICATES, 1))
    for name, is_link in (("layer", False), ("hostile", True)):
        path = tmp_path / name / "etc/ssl/certs/java/cacerts"
        path.parent.mkdir(parents=True)
        if is_link:
            path.symlink_to(outside)
        else:
            path.write_bytes(outside.read_bytes())
        finalize_upper(tmp_path / name, EPOCH)
    dated = (tmp_path / "layer/etc/ssl/certs/java/cacerts").read_bytes()
    assert dated == make_keystore(CERTIFICATES, EPOCH * 1000)
    assert outside.read_bytes() == make_keystore(CERTIFICATES, 1)
