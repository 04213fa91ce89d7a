from __future__ import annotations

import json

import pytest

from danlu.errors import OutsideError
from danlu.oci.digest import DiffId, sha256
from danlu.oci.image import make_image, parse_image
from danlu.oci.types import Index, Manifest, MediaType, layer_compression, parse_manifest

ONE, TWO = DiffId("sha256:" + "1" * 64), DiffId("sha256:" + "2" * 64)
DESCRIPTOR = {"mediaType": MediaType.CONFIG, "digest": ONE, "size": 3}


def test_equal_arguments_give_equal_bytes_in_any_order_of_labels() -> None:
    first = make_image([(ONE, "a")], architecture="amd64", labels={"a": "1", "b": "2"})
    second = make_image([(ONE, "a")], architecture="amd64", labels={"b": "2", "a": "1"})
    assert first.config == second.config
    assert first.digest == sha256(second.config)


def test_config_contains_the_given_values() -> None:
    image = make_image(
        [(ONE, "danlu: a"), (TWO, "")],
        architecture="arm64",
        variant="v8",
        created=1_700_000_000,
        environment=[("A", "x=y"), ("B", "")],
        entrypoint=["/e"],
        command=["c"],
        working_directory="/w",
        user="me",
        exposed_ports=["80", "53/udp"],
        labels=[("k", "v")],
    )
    assert json.loads(image.config) == {
        "architecture": "arm64",
        "variant": "v8",
        "os": "linux",
        "created": "2023-11-14T22:13:20Z",
        "config": {
            "User": "me",
            "ExposedPorts": {"80/tcp": {}, "53/udp": {}},
            "Env": ["A=x=y", "B="],
            "Entrypoint": ["/e"],
            "Cmd": ["c"],
            "WorkingDir": "/w",
            "Labels": {"k": "v"},
        },
        "rootfs": {"type": "layers", "diff_ids": [ONE, TWO]},
        "history": [
            {"created": "2023-11-14T22:13:20Z", "created_by": "danlu: a"},
            {"created": "2023-11-14T22:13:20Z"},
        ],
    }
    assert parse_image(image.config) == image
    assert parse_image(image.config).created_by == ("danlu: a", "")


def test_docker_config_with_nulls_and_extra_fields_is_parsed() -> None:
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": None, "Cmd": None, "ArgsEscaped": True, "OnBuild": None, "Labels": None},
        "container_config": {"Hostname": "x"},
        "docker_version": "20.10",
        "rootfs": {"type": "layers", "diff_ids": [ONE]},
        "history": [{"created_by": "ENV", "empty_layer": True}, {"created_by": "ADD"}],
    }
    raw = json.dumps(config).encode()
    image = parse_image(raw)
    assert (image.config, image.created_by) == (raw, ("ADD",))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"architecture":"a","os":"l"}',
        b'{"architecture":"a","os":"l","rootfs":{"type":"layers","diff_ids":["sha256:x"]}}',
        b'{"architecture":"a","os":"l","rootfs":{"type":"other","diff_ids":[]}}',
        b"[" * 100_000,
    ],
)
def test_invalid_config_is_rejected(raw: bytes) -> None:
    with pytest.raises(OutsideError):
        parse_image(raw)


def manifest(**fields: object) -> bytes:
    return json.dumps({"schemaVersion": 2, **fields}).encode()


def test_manifest_and_index_are_distinguished_by_their_fields() -> None:
    document = parse_manifest(manifest(config=DESCRIPTOR, layers=[]))
    many = parse_manifest(manifest(manifests=[DESCRIPTOR]))
    assert isinstance(document.value, Manifest)
    assert document.media_type == MediaType.MANIFEST
    assert isinstance(many.value, Index)
    assert many.media_type == MediaType.INDEX


def test_original_bytes_are_kept() -> None:
    raw = manifest(config=DESCRIPTOR, layers=[], unknown=1) + b"\n "
    document = parse_manifest(raw, MediaType.DOCKER_MANIFEST)
    assert document.raw == raw
    assert document.digest == sha256(raw)
    assert document.media_type == MediaType.DOCKER_MANIFEST


@pytest.mark.parametrize(
    ("raw", "media_type"),
    [
        (manifest(config=DESCRIPTOR, layers=[], manifests=[]), ""),
        (manifest(config=DESCRIPTOR, layers=[], mediaType=MediaType.INDEX), ""),
        (manifest(manifests=[], mediaType=MediaType.MANIFEST), ""),
        (manifest(manifests=[], mediaType=MediaType.INDEX), MediaType.MANIFEST),
        (manifest(manifests=[]), MediaType.MANIFEST),
        (manifest(fsLayers=[]), ""),
        (json.dumps({"schemaVersion": 1, "manifests": []}).encode(), ""),
        (manifest(config={**DESCRIPTOR, "digest": "sha256:../../x"}, layers=[]), ""),
        (manifest(config={**DESCRIPTOR, "size": -1}, layers=[]), ""),
        (manifest(config=DESCRIPTOR), ""),
        (b" " * (9 << 20), ""),
    ],
)
def test_ambiguous_documents_are_rejected(raw: bytes, media_type: str) -> None:
    with pytest.raises(OutsideError):
        parse_manifest(raw, media_type)


def test_unknown_layer_media_type_is_rejected() -> None:
    assert layer_compression(MediaType.DOCKER_LAYER_GZIP) == "gzip"
    with pytest.raises(OutsideError, match="unsupported layer media type"):
        layer_compression("application/vnd.cncf.helm.chart.content.v1.tar+gzip")
