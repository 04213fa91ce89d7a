"""Images with contradictory documents, and the limits of parsers."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from danlu.errors import ChecksumError, OutsideError
from danlu.oci import docker_archive, layout
from danlu.oci.digest import Digest, sha256
from danlu.oci.image import make_image, select_platform
from danlu.oci.registry import RegistryCredentials
from danlu.oci.registry.auth import AuthChallenge, Authorizer
from danlu.oci.tar import LayerError, extract_layer
from danlu.oci.types import Descriptor, Index, MediaType, Platform, encode_json
from tests.hostile_archives import ArchiveEntry, HostileArchive, tar_of
from tests.oci.layers import TreeLayerSource, image_of


@pytest.fixture
def source(tmp_path: Path) -> TreeLayerSource:
    return TreeLayerSource(tmp_path / "trees")


def put(directory: Path, data: bytes) -> Digest:
    digest = sha256(data)
    (directory / "blobs/sha256" / digest[7:]).write_bytes(data)
    return digest


def replace_index(directory: Path, *manifests: Descriptor) -> None:
    index = Index(manifests=manifests, media_type=MediaType.INDEX)
    (directory / "index.json").write_bytes(encode_json(index))


def nest(directory: Path, inner: Descriptor, times: int) -> Descriptor:
    for _ in range(times):
        data = encode_json(Index(manifests=(inner,), media_type=MediaType.INDEX))
        inner = Descriptor(MediaType.INDEX, put(directory, data), len(data))
    return inner


def test_nested_indexes_in_a_layout_are_read_up_to_a_limit(
    tmp_path: Path, source: TreeLayerSource
) -> None:
    out = tmp_path / "out"
    content = layout.write_layout(out, image_of(source, [{"a": "1"}]), source)
    inner = content.manifest
    manifest = Descriptor(MediaType.MANIFEST, inner.digest, inner.size)
    replace_index(out, nest(out, manifest, 4))
    (result,) = layout.read_layout(out)
    assert result.manifest.digest == content.manifest.digest
    replace_index(out, nest(out, manifest, 5))
    with pytest.raises(OutsideError, match="too deep"):
        layout.read_layout(out)


def test_layout_with_different_layers_in_manifest_and_config_is_rejected(
    tmp_path: Path, source: TreeLayerSource
) -> None:
    out = tmp_path / "out"
    content = layout.write_layout(out, image_of(source, [{"a": "1"}, {"b": "2"}]), source)
    (result,) = layout.read_layout(out)
    data = encode_json(replace(result.manifest.value, layers=result.manifest.value.layers[:1]))
    replace_index(out, Descriptor(MediaType.MANIFEST, put(out, data), len(data)))
    assert content.manifest.digest != sha256(data)
    with pytest.raises(OutsideError, match="list different layers"):
        layout.read_layout(out)


def test_writing_a_layout_replaces_only_the_unnamed_entry_of_the_same_image(
    tmp_path: Path, source: TreeLayerSource
) -> None:
    out = tmp_path / "out"
    first, two = image_of(source, [{"a": "1"}]), image_of(source, [{"a": "2"}])
    for image, names in ((first, ["x"]), (first, []), (two, []), (first, [])):
        layout.write_layout(out, image, source, names=names)
    index = json.loads((out / "index.json").read_text())
    assert len(index["manifests"]) == 3
    assert len({entry["digest"] for entry in index["manifests"]}) == 2


def rewrite_archive(data: bytes, change: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(data)) as old,
        tarfile.open(fileobj=stream, mode="w") as new,
    ):
        for info in old:
            content = old.extractfile(info)
            body = change.get(info.name, content.read() if content else b"")
            info.size = len(body)
            new.addfile(info, io.BytesIO(body))
    return stream.getvalue()


def test_docker_archive_with_different_layers_in_manifest_and_config_is_rejected(
    tmp_path: Path, source: TreeLayerSource
) -> None:
    out = io.BytesIO()
    docker_archive.write_archive(image_of(source, [{"a": "1"}, {"b": "2"}]), source, out.write)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as tar:
        listing = tar.extractfile("manifest.json")
        assert listing is not None
        (entry,) = json.loads(listing.read())
    path = tmp_path / "image.tar"
    for layers in (entry["Layers"][:1], [*entry["Layers"], entry["Layers"][0]]):
        changed = json.dumps([{**entry, "Layers": layers}]).encode()
        path.write_bytes(rewrite_archive(out.getvalue(), {"manifest.json": changed}))
        with (
            pytest.raises(OutsideError, match="different layers"),
            docker_archive.open_archive(path),
        ):
            pass
    config = make_image([], architecture="amd64")
    path.write_bytes(rewrite_archive(out.getvalue(), {entry["Config"]: config.config}))
    with pytest.raises(ChecksumError, match="the config"), docker_archive.open_archive(path):
        pass


# -- platforms


def make_descriptor(text: str) -> Descriptor:
    words = [*text.split("/"), ""]
    platform = Platform(words[1], words[0], words[2]) if text else None
    return Descriptor(MediaType.MANIFEST, sha256(text.encode()), 1, platform=platform)


@pytest.mark.parametrize(
    ("has", "wanted", "found"),
    [
        (["linux/amd64", "linux/arm64"], "linux/arm64", "linux/arm64"),
        (["linux/arm/v6", "linux/arm/v7"], "linux/arm", "linux/arm/v7"),
        (["linux/arm/v6"], "linux/arm", "linux/arm/v6"),
        (["linux/arm/v6"], "linux/arm/v7", ""),
        (["linux/arm64/v8"], "linux/arm64", "linux/arm64/v8"),
        (["linux/amd64/v3", "linux/amd64"], "linux/amd64", "linux/amd64"),
        (["linux/amd64/v3"], "linux/amd64", "linux/amd64/v3"),
        (["windows/amd64"], "linux/amd64", ""),
        (["linux/386"], "linux/amd64", ""),
        (["unknown/unknown", "linux/amd64"], "linux/amd64", "linux/amd64"),
    ],
)
def test_manifest_is_selected_by_platform(has: list[str], wanted: str, found: str) -> None:
    index = Index(manifests=tuple(make_descriptor(text) for text in has))
    words = [*wanted.split("/"), ""]
    if found:
        chosen = select_platform(index, os=words[0], architecture=words[1], variant=words[2])
        assert chosen == make_descriptor(found)
    else:
        with pytest.raises(OutsideError, match=f"not available for {wanted}"):
            select_platform(index, os=words[0], architecture=words[1], variant=words[2])


def test_manifest_without_a_platform_is_selected_only_if_it_is_the_only_one() -> None:
    nameless, attestation = make_descriptor(""), make_descriptor("unknown/unknown")
    for manifests in ((nameless,), (nameless, attestation)):
        assert (
            select_platform(Index(manifests=manifests), os="linux", architecture="amd64")
            == nameless
        )
    for wrong in ((), (nameless, nameless), (attestation,)):
        with pytest.raises(OutsideError, match="not available for"):
            select_platform(Index(manifests=wrong), os="linux", architecture="amd64")


# -- limits of what a layer may hold


def extract(root: Path, *items: ArchiveEntry) -> None:
    root.mkdir()
    extract_layer(io.BytesIO(tar_of(HostileArchive("", items))), root)


def test_layer_path_may_pass_through_at_most_forty_symlinks(tmp_path: Path) -> None:
    chain = [
        ArchiveEntry("link", b"l%d" % number, b"l%d" % (number - 1)) for number in range(1, 45)
    ]
    start = ArchiveEntry("dir", b"l0", mode=0o755)
    extract(tmp_path / "a", start, *chain, ArchiveEntry("file", b"l40/f"))
    assert (tmp_path / "a/l0/f").exists()
    with pytest.raises(LayerError, match="loop"):
        extract(tmp_path / "b", start, *chain, ArchiveEntry("file", b"l41/f"))


def test_layer_may_be_four_hundred_directories_deep(tmp_path: Path) -> None:
    extract(tmp_path / "a", ArchiveEntry("file", b"d/" * 399 + b"f"))
    with pytest.raises(LayerError, match="401 directories deep"):
        extract(tmp_path / "b", ArchiveEntry("file", b"d/" * 400 + b"f"))
    link = ArchiveEntry("link", b"l", b"d/" * 399)
    extract(
        tmp_path / "c", ArchiveEntry("dir", b"d/" * 399 + b"d"), link, ArchiveEntry("file", b"l/x")
    )
    with pytest.raises(LayerError, match="too deep"):
        extract(
            tmp_path / "d",
            ArchiveEntry("dir", b"d/" * 399 + b"d"),
            link,
            ArchiveEntry("file", b"l/d/e/x"),
        )


def test_directory_entry_of_the_oldest_format_ends_with_a_slash(tmp_path: Path) -> None:
    data = bytearray(
        tar_of(
            HostileArchive("", (ArchiveEntry("file", b"d/", b""), ArchiveEntry("file", b"f", b"1")))
        )
    )
    for at in (0, 512):
        data[at + 156] = 0
        total = sum(data[at : at + 512]) - sum(data[at + 148 : at + 156]) + 256
        data[at + 148 : at + 156] = b"%06o\0 " % total
    extract_layer(io.BytesIO(bytes(data)), tmp_path)
    assert (tmp_path / "d").is_dir()
    assert (tmp_path / "f").read_bytes() == b"1"


@pytest.mark.parametrize(
    ("size", "good"), [(b"9" * 19, False), (b"1" * 20, False), (b"-1", False), (b"1", True)]
)
def test_sizes_in_pax_records_are_numbers_below_two_to_the_63rd(
    tmp_path: Path, size: bytes, good: bool
) -> None:
    record = b" size=" + size + b"\n"
    record = str(len(record) + 2).encode() + record
    from danlu.oci.tar.write import block_padding, encode_header

    stream = (
        encode_header(b"x", b"x", mode=0, size=len(record)) + record + block_padding(len(record))
    )
    stream += encode_header(b"f", b"0", mode=0o644, size=1) + b"1" + block_padding(1) + bytes(1024)
    if good:
        extract_layer(io.BytesIO(stream), tmp_path)
        assert (tmp_path / "f").read_bytes() == b"1"
    else:
        with pytest.raises(LayerError):
            extract_layer(io.BytesIO(stream), tmp_path)


# -- who is asked for a token


@pytest.mark.parametrize(
    ("realm", "plain", "login", "refused"),
    [
        ("https://auth.example/token", False, True, ""),
        ("http://auth.example/token", False, True, "unencrypted"),
        ("http://auth.example/token", True, True, ""),
        ("http://auth.example/token", False, False, ""),
        ("ftp://auth.example/token", True, False, "invalid token server URL"),
        ("", True, False, "invalid token server URL"),
        ("/token", True, True, "invalid token server URL"),
    ],
)
def test_password_is_sent_to_a_token_server_only_encrypted_unless_the_registry_uses_http(
    realm: str, plain: bool, login: bool, refused: str
) -> None:
    authorizer = Authorizer(None, "r.example", None)  # type: ignore[arg-type]
    authorizer.allow_plain_http = plain
    credentials = RegistryCredentials("me", "secret") if login else None
    if refused:
        with pytest.raises(OutsideError, match=refused):
            authorizer._check_realm(realm, credentials)
    else:
        authorizer._check_realm(realm, credentials)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"token": 1}', b"{}", b'{"token": ""}', b'{"token": "a\\nb"}',
     '{"token": "ü"}'.encode(), b'{"token": "a\\u0000"}'],
)  # fmt: skip
def test_token_with_invalid_characters_is_rejected(body: bytes) -> None:
    authorizer = Authorizer(None, "r.example", None)  # type: ignore[arg-type]
    with pytest.raises(OutsideError, match="gave no token"):
        authorizer._parse_token(body)


def test_token_response_may_use_either_field_and_a_lifetime(tmp_path: Path) -> None:
    authorizer = Authorizer(None, "r.example", None)  # type: ignore[arg-type]
    assert authorizer._parse_token(b'{"token": "a", "expires_in": 5}') == ("a", 5)
    assert authorizer._parse_token(b'{"access_token": "b"}') == ("b", 60)
    assert authorizer._parse_token(b'{"token": "a", "access_token": "b"}') == ("a", 60)


def test_bearer_is_preferred_and_unknown_schemes_are_ignored() -> None:
    authorizer = Authorizer(None, "r.example", None)  # type: ignore[arg-type]
    assert not authorizer.accept_challenge(["Negotiate"])
    assert not authorizer.accept_challenge(['Digest realm="x"'])
    assert authorizer._challenge is None
    assert authorizer.accept_challenge(['Basic realm="x"', 'Bearer realm="https://y"'])
    assert authorizer._challenge == AuthChallenge("bearer", {"realm": "https://y"})
