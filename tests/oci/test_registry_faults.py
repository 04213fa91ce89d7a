"""The client against a registry that fails, lies, and requires authentication."""

from __future__ import annotations

import base64
import io
import json
import os
import random
from collections.abc import AsyncIterator, Awaitable, Collection
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
from yarl import URL

from danlu.errors import ChecksumError, OutsideError, TemporaryError
from danlu.oci.digest import DiffId, Digest, sha256
from danlu.oci.registry import (
    Registry,
    RegistryCredentials,
    RegistryEndpoint,
    find_docker_credentials,
)
from danlu.oci.registry.auth import Authorizer, parse_challenges
from danlu.oci.registry.credentials import CredentialHelperError
from danlu.oci.registry.transfer import BlobUpload
from danlu.oci.registry.transport import RegistryTransport
from danlu.oci.types import (
    MAX_DOCUMENT_SIZE,
    Descriptor,
    Index,
    Manifest,
    MediaType,
    ParsedDocument,
)
from danlu.util.retry import RetryPolicy
from danlu.util.tasks import run_concurrently
from tests.fakes.registry import FakeRegistry, RegistryFault
from tests.oci.registries import ROUTINE, client, make_certificate, no_pause

pytestmark = pytest.mark.anyio
BIG = random.Random(3).randbytes(3 << 20)
BIG_DIGEST = sha256(BIG)
ME = RegistryCredentials("me", "secret")


@pytest.fixture
async def fake() -> AsyncIterator[FakeRegistry]:
    async with FakeRegistry() as registry:
        registry.put_blob("r", BIG)
        yield registry


async def fetch(
    fake: FakeRegistry,
    *,
    digest: str = BIG_DIGEST,
    size: int = len(BIG),
    login: RegistryCredentials | None = None,
) -> bytes:
    pieces: list[bytes] = []
    async with client(fake.host, login=login) as registry:
        await registry.download_blob("r", Descriptor("x", Digest(digest), size), pieces.append)
    return b"".join(pieces)


async def test_interrupted_download_is_resumed(fake: FakeRegistry) -> None:
    fake.faults = [RegistryFault(path="/blobs/", drop_after=1 << 20, times=2)]
    assert await fetch(fake) == BIG
    asked = [request.headers.get("Range") for request in fake.requests("GET", "/blobs/")]
    assert asked[0] is None
    begins = [int(header.removeprefix("bytes=").rstrip("-")) for header in asked[1:] if header]
    assert len(begins) == 2
    assert 0 < begins[0] <= 1 << 20
    assert begins[0] < begins[1] <= 2 << 20


async def test_download_restarts_if_the_registry_ignores_ranges(fake: FakeRegistry) -> None:
    fake.ranges = False
    fake.faults = [RegistryFault(path="/blobs/", drop_after=2 << 20)]
    assert await fetch(fake) == BIG


async def test_interruptions_with_progress_do_not_count_as_failures(fake: FakeRegistry) -> None:
    fake.faults = [RegistryFault(path="/blobs/", drop_after=100 << 10, times=20)]
    assert await fetch(fake) == BIG


async def test_download_without_progress_is_given_up(fake: FakeRegistry) -> None:
    fake.faults = [RegistryFault(path="/blobs/", drop_after=10, times=100)]
    with pytest.raises(TemporaryError):
        await fetch(fake)
    assert len(fake.requests("GET", "/blobs/")) == 4


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_temporary_errors_are_retried(fake: FakeRegistry, status: int) -> None:
    fake.faults = [RegistryFault(path="/blobs/", status=status, times=3)]
    assert await fetch(fake) == BIG


async def test_lasting_temporary_error_contains_the_registrys_message(
    fake: FakeRegistry,
) -> None:
    fake.faults = [RegistryFault(path="/blobs/", status=503, times=99)]
    with pytest.raises(TemporaryError, match=r"unavailable .* HTTP 503: injected fault"):
        await fetch(fake)


async def test_retry_after_is_honoured(fake: FakeRegistry) -> None:
    from tests.oci.registries import nobody

    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    fake.faults = [RegistryFault(path="/blobs/", status=429, headers={"Retry-After": "7"})]
    backoff = RetryPolicy(attempts=3, initial_delay=0.1)
    async with Registry(
        RegistryEndpoint(fake.host), lookup=nobody, backoff=backoff, sleep=sleep
    ) as registry:
        assert not await registry.has_blob("r", sha256(b"x"))
    assert pauses == [7.0]


async def test_permanent_errors_are_not_retried(fake: FakeRegistry) -> None:
    fake.faults = [RegistryFault(path="/blobs/", status=400, times=99)]
    with pytest.raises(OutsideError, match="HTTP 400"):
        await fetch(fake)
    assert len(fake.requests("GET", "/blobs/")) == 1


@pytest.mark.parametrize("wrong", [BIG[:-1] + b"\0", BIG + b"\0", BIG[:-5], b""])
async def test_blob_with_a_wrong_digest_is_rejected(fake: FakeRegistry, wrong: bytes) -> None:
    fake.wrong[BIG_DIGEST] = wrong
    with pytest.raises((ChecksumError, TemporaryError)):
        await fetch(fake)


async def test_blob_with_a_wrong_size_is_rejected(fake: FakeRegistry) -> None:
    with pytest.raises(ChecksumError, match="sent more than"):
        await fetch(fake, size=len(BIG) - 1)


@pytest.mark.parametrize("by_tag", [True, False])
async def test_manifest_with_a_wrong_digest_is_rejected(fake: FakeRegistry, by_tag: bool) -> None:
    digest = fake.put_manifest("r", b'{"schemaVersion":2,"manifests":[]}', tag="t")
    fake.wrong[digest] = b'{"schemaVersion":2,"manifests":[] }'
    async with client(fake.host) as registry:
        with pytest.raises(ChecksumError):
            await registry.get_manifest("r", "t" if by_tag else digest)


async def test_endless_manifest_is_rejected(fake: FakeRegistry) -> None:
    fake.put_manifest("r", b"{" + b" " * (MAX_DOCUMENT_SIZE + 10) + b"}", tag="t")
    async with client(fake.host) as registry:
        with pytest.raises(OutsideError, match="exceeds"):
            await registry.get_manifest("r", "t")


async def test_interrupted_upload_is_resumed(fake: FakeRegistry, tmp_path: Path) -> None:
    content = random.Random(4).randbytes(4 << 20)
    (tmp_path / "blob").write_bytes(content)
    fake.faults = [RegistryFault(method="PATCH", drop_after=1 << 20, times=2)]
    async with client(fake.host) as registry:
        await registry.push_blob("r", sha256(content), tmp_path / "blob")
    assert fake.blobs[sha256(content)] == content
    ranges = [request.headers["Content-Range"] for request in fake.requests("PATCH")]
    assert len(ranges) == 3
    assert ranges[0].startswith("0-")
    assert int(ranges[2].partition("-")[0]) >= 2 << 20


async def test_upload_restarts_if_the_registry_cannot_resume(
    fake: FakeRegistry, tmp_path: Path
) -> None:
    content = random.Random(5).randbytes(2 << 20)
    (tmp_path / "blob").write_bytes(content)
    fake.resumable = False
    fake.faults = [RegistryFault(method="PATCH", drop_after=1 << 20)]
    sent: list[int] = []
    async with client(fake.host) as registry:
        await registry.push_blob("r", sha256(content), tmp_path / "blob", progress=sent.append)
    assert fake.blobs[sha256(content)] == content
    assert sum(sent) == len(content)


@pytest.mark.parametrize(
    "fault",
    [
        RegistryFault(method="POST", status=503, times=2),
        RegistryFault(method="PUT", status=500, times=2),
        RegistryFault(method="PUT", drop_after=3, times=2),
        RegistryFault(method="PATCH", status=502, times=2),
    ],
)
@pytest.mark.parametrize("size", [1000, 2 << 20])
async def test_upload_survives_temporary_errors(
    fake: FakeRegistry, fault: RegistryFault, size: int
) -> None:
    content = random.Random(size).randbytes(size)
    fake.faults = [
        RegistryFault(fault.method, times=2, status=fault.status, drop_after=fault.drop_after)
    ]
    async with client(fake.host) as registry:
        await registry.push_blob("r", sha256(content), content)
    assert fake.blobs[sha256(content)] == content


async def test_upload_whose_response_was_lost_is_not_sent_again(fake: FakeRegistry) -> None:
    content = random.Random(8).randbytes(2 << 20)
    fake.faults = [RegistryFault(method="PUT", drop_response=True)]
    async with client(fake.host) as registry:
        await registry.push_blob("r", sha256(content), content)
    assert fake.blobs[sha256(content)] == content
    assert len(fake.requests("PATCH")) == 1


async def test_blob_is_sent_in_parts_if_the_registry_refuses_long_requests(
    fake: FakeRegistry,
) -> None:
    content = random.Random(9).randbytes(40 << 20)
    fake.max_request = 16 << 20
    sent: list[int] = []
    async with client(fake.host) as registry:
        await registry.push_blob("r", sha256(content), content, progress=sent.append)
    assert fake.blobs[sha256(content)] == content
    accepted = [request for request in fake.requests("PATCH") if request.status == 202]
    assert [request.headers["Content-Range"] for request in accepted] == [
        "0-16777215",
        "16777216-33554431",
        "33554432-41943039",
    ]
    assert sum(sent) == len(content)


async def test_parts_have_at_least_the_length_that_the_registry_asks_for(
    fake: FakeRegistry,
) -> None:
    content = random.Random(9).randbytes(40 << 20)
    fake.max_request, fake.min_part = 21 << 20, 20 << 20
    async with client(fake.host) as registry:
        await registry.push_blob("r", sha256(content), content)
    lengths = [request.headers["Content-Length"] for request in fake.requests("PATCH")]
    assert lengths == [str(40 << 20), str(20 << 20), str(20 << 20)]


async def test_registry_that_refuses_every_part_is_an_error(fake: FakeRegistry) -> None:
    content = random.Random(9).randbytes(20 << 20)
    fake.max_request = 1 << 20
    async with client(fake.host) as registry:
        with pytest.raises(OutsideError, match="refuses a request of this size") as caught:
            await registry.push_blob("r", sha256(content), content)
    assert "client_max_body_size" in caught.value.hint


async def test_stalled_upload_is_given_up_and_repeated(fake: FakeRegistry) -> None:
    content = random.Random(10).randbytes(48 << 20)
    fake.faults = [RegistryFault(method="PATCH", stall=True)]
    async with Registry(
        RegistryEndpoint(fake.host), backoff=ROUTINE, sleep=no_pause, read_timeout=0.5
    ) as registry:
        await registry.push_blob("r", sha256(content), content)
    assert fake.blobs[sha256(content)] == content


async def test_registry_that_stalls_every_upload_is_an_error(fake: FakeRegistry) -> None:
    content = random.Random(10).randbytes(48 << 20)
    fake.faults = [RegistryFault(method="PATCH", stall=True, times=99)]
    async with Registry(
        RegistryEndpoint(fake.host), backoff=ROUTINE, sleep=no_pause, read_timeout=0.1
    ) as registry:
        with pytest.raises(TemporaryError, match=r"took no data for 0\.1 seconds"):
            await registry.push_blob("r", sha256(content), content)


@pytest.mark.parametrize("path", ["/blobs/", "/manifests/"])
async def test_registry_that_sends_byte_by_byte_is_given_up(fake: FakeRegistry, path: str) -> None:
    fake.put_manifest("r", b"{}" + b" " * 9999, tag="1", kind=MediaType.MANIFEST)
    fault = RegistryFault(path=path, drip=True, times=99)
    fake.faults = [fault]
    async with Registry(
        RegistryEndpoint(fake.host), backoff=ROUTINE, sleep=no_pause, read_timeout=0.2
    ) as registry:
        blob = Descriptor("x", Digest(BIG_DIGEST), len(BIG))
        download: Awaitable[object] = (
            registry.download_blob("r", blob, io.BytesIO().write)
            if path == "/blobs/"
            else registry.get_manifest("r", "1")
        )
        with pytest.raises(TemporaryError, match="is too slow: less than 64 KiB"):
            await download
    assert 99 - fault.times == ROUTINE.attempts


async def test_slow_part_of_a_download_is_kept(fake: FakeRegistry) -> None:
    fake.faults = [RegistryFault(path="/blobs/", drip=True)]
    received = io.BytesIO()
    async with Registry(
        RegistryEndpoint(fake.host), backoff=ROUTINE, sleep=no_pause, read_timeout=0.2
    ) as registry:
        descriptor = Descriptor("x", Digest(BIG_DIGEST), len(BIG))
        await registry.download_blob("r", descriptor, received.write)
    assert received.getvalue() == BIG
    ranges = [request.headers.get("Range") for request in fake.requests("GET", "/blobs/")]
    assert any(begin and begin != "bytes=0-" for begin in ranges)


async def test_upload_that_the_registry_keeps_losing_fails(
    fake: FakeRegistry,
) -> None:
    content = random.Random(11).randbytes(8 << 20)
    # Each time some of the upload arrives and is confirmed, and is then forgotten.
    for _ in range(50):
        fake.faults += [
            RegistryFault(method="PATCH", drop_after=1 << 20),
            RegistryFault(method="GET", path="/uploads/", status=404),
        ]
    async with client(fake.host) as registry:
        with pytest.raises(TemporaryError):
            await registry.push_blob("r", sha256(content), content)
    assert len(fake.requests("PATCH")) < 20


async def test_download_continues_after_the_bytes_of_an_earlier_one(fake: FakeRegistry) -> None:
    pieces: list[bytes] = []
    counts: list[int] = []
    async with client(fake.host) as registry:
        await registry.download_blob(
            "r",
            Descriptor("x", BIG_DIGEST, len(BIG)),
            pieces.append,
            received=io.BytesIO(BIG[: 2 << 20]),
            progress=counts.append,
        )
    assert b"".join(pieces) == BIG[2 << 20 :]
    assert sum(counts) == len(BIG)
    (request,) = fake.requests("GET", "/blobs/")
    assert request.headers["Range"] == f"bytes={2 << 20}-"


async def test_wrong_bytes_of_an_earlier_download_are_found(fake: FakeRegistry) -> None:
    async with client(fake.host) as registry:
        with pytest.raises(ChecksumError):
            await registry.download_blob(
                "r",
                Descriptor("x", BIG_DIGEST, len(BIG)),
                lambda data: None,
                received=io.BytesIO(b"x" * 100),
            )


@pytest.mark.parametrize("status", [400, 500, 503])
async def test_registry_that_fails_to_mount_gets_the_blob(fake: FakeRegistry, status: int) -> None:
    digest = Digest(fake.put_blob("source", b"mounted"))
    fake.faults = [RegistryFault(method="POST", path="/uploads/", status=status)]
    async with client(fake.host) as registry:
        assert not await registry.mount_blob("r", digest, "source")
        await registry.push_blob("r", digest, b"mounted")
    assert digest in fake.linked["r"]


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        ("7", "in 7.0 s"),
        ("9" * 400, "in 1 h"),
        ("Fri, 31 Dec 9999 23:59:59 GMT", "in 1 h"),
        ("Mon, 01 Jan 0001 00:00:00 GMT", "later"),
        ("-5", "later"),
        ("²", "later"),
        ("soon", "later"),
    ],
)
async def test_wait_that_the_registry_asks_for_is_in_the_hint(
    fake: FakeRegistry, header: str, hint: str
) -> None:
    fake.faults = [RegistryFault(status=429, times=99, headers={"Retry-After": header})]
    async with client(fake.host) as registry:
        with pytest.raises(TemporaryError) as caught:
            await registry.has_blob("r", sha256(b"x"))
    assert hint in caught.value.hint


async def test_retries_are_reported(fake: FakeRegistry) -> None:
    reports: list[str] = []
    fake.faults = [RegistryFault(path="/blobs/", status=503, times=2)]
    async with Registry(
        RegistryEndpoint(fake.host),
        backoff=ROUTINE,
        sleep=no_pause,
        on_retry=lambda error, wait: reports.append(error.message),
    ) as registry:
        await registry.has_blob("r", sha256(b"x"))
    assert len(reports) == 2
    assert "HTTP 503" in reports[0]


async def test_unreachable_registry_is_a_temporary_error(fake: FakeRegistry) -> None:
    from tests.ports import free_port

    async with client(f"localhost:{free_port()}") as registry:
        with pytest.raises(TemporaryError, match="cannot reach localhost") as caught:
            await registry.ping()
    assert 'mirror in [registries."localhost' in caught.value.hint


# Who we are


@pytest.mark.parametrize("tokens", [True, False])
async def test_login_grants_access(fake: FakeRegistry, tokens: bool) -> None:
    fake.users, fake.tokens = {"me": "secret"}, tokens
    assert await fetch(fake, login=ME) == BIG
    async with client(fake.host, login=ME) as registry:
        await registry.push_blob("new", sha256(b"x"), b"x")


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("login", [None, RegistryCredentials("me", "wrong")])
async def test_error_without_a_login_has_a_login_hint(
    fake: FakeRegistry, tokens: bool, login: RegistryCredentials | None
) -> None:
    fake.users, fake.tokens = {"me": "secret"}, tokens
    with pytest.raises(OutsideError, match="denied access") as caught:
        await fetch(fake, login=login)
    assert f"danlu login {fake.host}" in caught.value.hint


async def test_public_image_is_pulled_without_a_login(fake: FakeRegistry) -> None:
    fake.users, fake.public = {"me": "secret"}, True
    assert await fetch(fake) == BIG


async def test_one_token_serves_many_requests(fake: FakeRegistry) -> None:
    fake.users = {"me": "secret"}
    async with client(fake.host, login=ME) as registry:
        for _ in range(5):
            assert await registry.has_blob("r", BIG_DIGEST)
    assert len(fake.requests(path="/token")) == 1


async def test_expired_token_is_renewed(fake: FakeRegistry) -> None:
    fake.users = {"me": "secret"}
    async with client(fake.host, login=ME) as registry:
        assert await registry.has_blob("r", BIG_DIGEST)
        fake.revoke_tokens()
        assert await registry.has_blob("r", BIG_DIGEST)


async def test_identity_token_is_exchanged(fake: FakeRegistry) -> None:
    fake.users, fake.identity_tokens = {"x": "y"}, {"refresh": "me"}
    assert await fetch(fake, login=RegistryCredentials(identity_token="refresh")) == BIG
    assert [request.method for request in fake.requests(path="/token")] == ["POST"]


async def test_password_is_not_sent_to_another_host_on_a_redirect(fake: FakeRegistry) -> None:
    async with FakeRegistry() as other:
        other.put_blob("r", BIG)
        fake.users, fake.tokens = {"me": "secret"}, False
        fake.redirect_blobs_to = other.url
        assert await fetch(fake, login=ME) == BIG
        assert len(other.log) == 1
        assert "Authorization" not in other.log[0].headers


@pytest.mark.parametrize("tokens", [True, False])
async def test_redirect_target_cannot_ask_for_the_password(
    fake: FakeRegistry, tokens: bool
) -> None:
    async with FakeRegistry() as thief:
        thief.put_blob("r", BIG)
        thief.users, thief.tokens = {"x": "y"}, tokens
        fake.users, fake.redirect_blobs_to = {"me": "secret"}, thief.url
        with pytest.raises(OutsideError):
            await fetch(fake, login=ME)
        fake.uploads_at = thief.url
        async with client(fake.host, login=ME) as registry:
            with pytest.raises(OutsideError):
                await registry.push_blob("r", sha256(b"x"), b"x")
        assert {request.method for request in thief.log} == {"GET", "PUT"}
        assert not any("Authorization" in request.headers for request in thief.log)
        assert thief.requests(path="/token") == []


async def test_password_is_not_sent_unencrypted(tmp_path: Path) -> None:
    tls, ca = make_certificate(tmp_path)
    async with FakeRegistry() as thief, FakeRegistry(tls=tls) as fake:
        fake.put_blob("r", b"x")
        fake.users, fake.realm = {"me": "secret"}, f"{thief.url}/token"
        async with client(fake.host, login=ME, ca=str(ca)) as registry:
            with pytest.raises(OutsideError, match="unencrypted"):
                await registry.has_blob("r", sha256(b"x"))
        assert thief.log == []


async def test_configured_ca_is_trusted(tmp_path: Path) -> None:
    tls, ca = make_certificate(tmp_path)
    async with FakeRegistry(tls=tls) as fake:
        fake.put_blob("r", b"x")
        async with client(fake.host, ca=str(ca)) as registry:
            assert await registry.has_blob("r", sha256(b"x"))


async def test_unknown_certificate_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Registries on this machine are trusted; this one shall count as one elsewhere.
    monkeypatch.setattr(RegistryEndpoint, "is_local", property(lambda self: False))
    tls, ca = make_certificate(tmp_path)
    async with FakeRegistry(tls=tls) as fake:
        async with client(fake.host) as registry:
            with pytest.raises(OutsideError, match="cannot verify the certificate") as caught:
                await registry.ping()
            assert "SSL_CERT_FILE" in caught.value.hint
        async with client(fake.host, insecure=True) as registry:
            await registry.ping()
        monkeypatch.setenv("SSL_CERT_FILE", str(ca))
        async with client(fake.host) as registry:
            await registry.ping()


async def test_plain_http_is_only_for_local_and_insecure_registries(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RegistryEndpoint, "is_local", property(lambda self: False))
    async with client(fake.host) as registry:
        with pytest.raises(OutsideError):
            await registry.ping()
    async with client(fake.host, insecure=True) as registry:
        await registry.ping()


async def test_proxy_from_the_environment_is_used(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", fake.url)
    monkeypatch.setenv("https_proxy", fake.url)
    monkeypatch.setenv("no_proxy", "")
    async with client("registry.invalid:80", insecure=True) as registry:
        assert await registry.has_blob("r", BIG_DIGEST)
    assert await fetch(fake) == BIG
    hosts = {request.headers["Host"] for request in fake.log}
    assert "registry.invalid:80" in hosts or "registry.invalid" in hosts


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0\xff",
        b'{"schemaVersion":2}',
        b'{"schemaVersion":2,"config":{},"layers":[]}',
        b'{"schemaVersion":2,"manifests":[{"digest":"x"}]}',
        b"[" * 50_000,
    ],
)
async def test_invalid_responses_raise_outside_error(fake: FakeRegistry, answer: bytes) -> None:
    fake.put_manifest("r", answer, tag="t", kind="application/octet-stream")
    async with client(fake.host) as registry:
        with pytest.raises(OutsideError):
            await registry.get_manifest("r", "t")


def test_challenges_of_various_registries_are_parsed() -> None:
    challenge = (
        'Bearer realm="https://a/t?x=1,2",service="s, \\"q\\"",scope="repository:a/b:pull,push"'
    )
    (bearer,) = parse_challenges([challenge])
    assert bearer.scheme == "bearer"
    assert bearer.parameters == {
        "realm": "https://a/t?x=1,2",
        "service": 's, "q"',
        "scope": "repository:a/b:pull,push",
    }
    both = parse_challenges(['Basic realm="x", Bearer realm=https://a/t'])
    assert [(challenge.scheme, dict(challenge.parameters)) for challenge in both] == [
        ("basic", {"realm": "x"}),
        ("bearer", {"realm": "https://a/t"}),
    ]
    assert parse_challenges(["Basic"])[0].scheme == "basic"
    assert parse_challenges(["", "?", "Bearer"])[-1].scheme == "bearer"


# What logins left on this machine


def config(place: Path, value: object) -> dict[str, str]:
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps(value))
    return {"DOCKER_CONFIG": str(place), "HOME": str(place), "PATH": os.environ["PATH"]}


def encode_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("r.example.com", "r.example.com"),
        ("r.example.com", "https://r.example.com"),
        ("r.example.com", "https://r.example.com/v1/"),
        ("localhost:5000", "localhost:5000"),
        ("docker.io", "https://index.docker.io/v1/"),
    ],
)
async def test_docker_logins_are_found(tmp_path: Path, host: str, key: str) -> None:
    environ = config(tmp_path, {"auths": {"other": {}, key: {"auth": encode_base64("me:pa:ss")}}})
    assert await find_docker_credentials(host, environ=environ) == RegistryCredentials(
        "me", "pa:ss"
    )
    assert await find_docker_credentials("elsewhere.example.com", environ=environ) is None


async def test_identity_tokens_are_found(tmp_path: Path) -> None:
    entry = {"auth": encode_base64("00000000:"), "identitytoken": "refresh"}
    environ = config(tmp_path, {"auths": {"h": entry}})
    docker_credentials = await find_docker_credentials("h", environ=environ)
    assert docker_credentials is not None
    assert docker_credentials.identity_token == "refresh"


def helper(place: Path, name: str, script: str) -> None:
    path = place / f"docker-credential-{name}"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


async def test_credential_helpers_are_used(tmp_path: Path) -> None:
    helper(
        tmp_path,
        "one",
        'read server; test "$1 $server" = "get h" || exit 1\n'
        'echo \'{"ServerURL":"h","Username":"me","Secret":"s"}\'',
    )
    helper(
        tmp_path, "all", 'read server; echo "{\\"Username\\":\\"$server\\",\\"Secret\\":\\"s\\"}"'
    )
    environ = config(tmp_path, {"credHelpers": {"h": "one"}, "credsStore": "all"})
    environ["PATH"] = f"{tmp_path}:{environ['PATH']}"
    assert await find_docker_credentials("h", environ=environ) == RegistryCredentials("me", "s")
    hub = await find_docker_credentials("docker.io", environ=environ)
    assert hub == RegistryCredentials("https://index.docker.io/v1/", "s")


@pytest.mark.parametrize(
    "value",
    [
        {"credsStore": "../../bin/sh"},
        {"credsStore": 5, "auths": []},
        {"auths": {"h": {"auth": "!!!"}}},
        {"auths": {"h": {"auth": encode_base64("nocolon")}}},
        {"auths": {"h": None}},
        [],
    ],
)
async def test_broken_login_is_ignored(tmp_path: Path, value: object) -> None:
    assert await find_docker_credentials("h", environ=config(tmp_path, value)) in (
        None,
        RegistryCredentials("nocolon", ""),
    )


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no AWS keys; echo noise >&2; exit 1", "docker-credential-x failed: no AWS keys"),
        ("printf 'first\\nlast\\033[2J' >&2; exit 3", r"failed: last\\x1b\[2J"),
        ("exit 7", "failed: exit code 7"),
        ("echo hello", "printed no JSON"),
        ("echo '[]'", "printed no Username and Secret"),
        ("exec sleep 1000", r"did not answer within 0\.2 seconds"),
    ],
)
async def test_failure_of_a_credential_helper_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    monkeypatch.setattr("danlu.oci.registry.credentials._HELPER_TIMEOUT", 0.2)
    if "sleep" not in script:
        monkeypatch.undo()
    helper(tmp_path, "x", script)
    environ = config(tmp_path, {"credHelpers": {"h": "x"}})
    environ["PATH"] = f"{tmp_path}:{environ['PATH']}"
    with pytest.raises(CredentialHelperError, match=message):
        await find_docker_credentials("h", environ=environ)


async def test_missing_credential_helper_is_reported(tmp_path: Path) -> None:
    environ = config(tmp_path, {"credsStore": "missing"})
    with pytest.raises(CredentialHelperError, match="docker-credential-missing is not on PATH"):
        await find_docker_credentials("h", environ=environ)


async def test_helper_without_credentials_leaves_the_login_of_the_file(tmp_path: Path) -> None:
    helper(tmp_path, "x", "echo credentials not found in native keychain; exit 1")
    auths = {"h": {"auth": encode_base64("me:s")}}
    environ = config(tmp_path, {"credsStore": "x", "auths": auths})
    environ["PATH"] = f"{tmp_path}:{environ['PATH']}"
    assert await find_docker_credentials("h", environ=environ) == RegistryCredentials("me", "s")
    assert await find_docker_credentials("elsewhere", environ=environ) is None


async def test_login_after_a_failed_helper_is_used(tmp_path: Path) -> None:
    auths = {"h": {"auth": encode_base64("me:s")}}
    environ = config(tmp_path, {"credsStore": "missing", "auths": auths})
    assert await find_docker_credentials("h", environ=environ) == RegistryCredentials("me", "s")


async def test_helper_returns_an_identity_token_that_is_exchanged(
    fake: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(tmp_path, "acr", """cat >&2; echo '{"Username":"<token>","Secret":"refresh"}'""")
    for name, value in config(tmp_path, {"credHelpers": {fake.host: "acr"}}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    fake.users, fake.identity_tokens = {"x": "y"}, {"refresh": "me"}
    async with Registry(fake.host, backoff=ROUTINE, sleep=no_pause) as registry:
        assert await registry.has_blob("r", BIG_DIGEST)
    assert [request.method for request in fake.requests(path="/token")] == ["POST"]


@pytest.mark.parametrize("tokens", [True, False])
async def test_denied_access_reports_the_failed_credential_helper(
    fake: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: bool
) -> None:
    helper(tmp_path, "x", "echo the session expired; exit 1")
    for name, value in config(tmp_path, {"credHelpers": {fake.host: "x"}}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    fake.users, fake.tokens, fake.public = {"x": "y"}, tokens, True
    async with Registry(fake.host, backoff=ROUTINE, sleep=no_pause) as registry:
        assert await registry.has_blob("r", BIG_DIGEST)
        with pytest.raises(OutsideError, match="denied access") as caught:
            await registry.push_blob("r", sha256(b"new"), b"new")
    assert caught.value.details == ("docker-credential-x failed: the session expired",)


async def test_password_is_renewed_once_for_all_requests() -> None:
    asked: list[Collection[RegistryCredentials]] = []
    now = 0.0

    async def lookup(_: str, rejected: Collection[RegistryCredentials]) -> RegistryCredentials:
        asked.append(rejected)
        return RegistryCredentials("me", f"p{len(asked)}")

    async with aiohttp.ClientSession() as session:
        authorizer = Authorizer(session, "h", lookup, clock=lambda: now)
        authorizer.accept_challenge(['Basic realm="h"'])
        for number in range(1, 20):
            header = await authorizer.authorization_header("")
            assert header == RegistryCredentials("me", f"p{number}").basic_authorization
            now += 3600
            for _ in range(8):
                authorizer.discard_authorization("", header)
        assert len(asked) == 19
        # One that rejects everything does not keep a helper busy.
        header = await authorizer.authorization_header("")
        for _ in range(100):
            assert header is not None
            authorizer.discard_authorization("", header)
            header = await authorizer.authorization_header("")
        assert len(asked) == 20


async def test_rejected_token_is_replaced_once_for_all_requests(fake: FakeRegistry) -> None:
    fake.users = {"me": "secret"}
    async with client(fake.host, login=ME) as registry:
        await registry.has_blob("r", BIG_DIGEST)
        fake.revoke_tokens()
        job = partial(registry.has_blob, "r", BIG_DIGEST)
        assert await run_concurrently([job] * 8) == [True] * 8
    assert len(fake.requests(path="/token")) == 2


@pytest.mark.parametrize("size", [1000, 3 << 20])
async def test_token_that_expires_during_an_upload_is_renewed(
    fake: FakeRegistry, size: int
) -> None:
    content = random.Random(12).randbytes(size)
    fake.users = {"me": "secret"}
    fake.revoke_before = ("PATCH", "PUT")
    async with client(fake.host, login=ME) as registry:
        await registry.push_blob("r", sha256(content), content)
    assert fake.blobs[sha256(content)] == content


@pytest.mark.parametrize(
    ("repository", "user"),
    [("team/a", "team"), ("team/a/b", "team"), ("teams", "all"), ("team/c", "c"), ("", "all")],
)
async def test_login_for_a_namespace_wins_over_that_for_the_registry(
    tmp_path: Path, repository: str, user: str
) -> None:
    users = {"h": "all", "h/team": "team", "h/team/c": "c", "https://h/v1/": "legacy"}
    auths = {key: {"auth": encode_base64(f"{name}:s")} for key, name in users.items()}
    environ = config(tmp_path, {"auths": auths})
    docker_credentials = await find_docker_credentials("h", environ=environ, repository=repository)
    assert docker_credentials == RegistryCredentials(user, "s")


async def test_login_for_another_namespace_is_not_used(tmp_path: Path) -> None:
    environ = config(tmp_path, {"auths": {"h/team": {"auth": encode_base64("me:s")}}})
    assert await find_docker_credentials("h", environ=environ, repository="other/a") is None


async def test_podman_logins_are_found_too(tmp_path: Path) -> None:
    environ = config(tmp_path, {})
    (tmp_path / "containers").mkdir()
    (tmp_path / "containers/auth.json").write_text(
        json.dumps({"auths": {"h": {"auth": encode_base64("pod:man")}}})
    )
    environ["XDG_RUNTIME_DIR"] = str(tmp_path)
    assert await find_docker_credentials("h", environ=environ) == RegistryCredentials("pod", "man")


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(RegistryCredentials("me", "secret", "secret"))


# A registry that lies


EMPTY_INDEX = b'{"schemaVersion":2,"manifests":[]}'
OTHER_INDEX = b'{"schemaVersion":2,"manifests":[] }'


@pytest.mark.parametrize("stated", [sha256(OTHER_INDEX), "", "md5:nonsense"])
async def test_requested_manifest_digest_wins_over_the_header(
    fake: FakeRegistry, stated: str
) -> None:
    digest = fake.put_manifest("r", EMPTY_INDEX, tag="t")
    fake.wrong[digest] = OTHER_INDEX
    fake.stated_digest = stated
    async with client(fake.host) as registry:
        with pytest.raises(ChecksumError, match=digest):
            await registry.get_manifest("r", digest)


async def test_manifest_by_tag_needs_no_digest_header(fake: FakeRegistry) -> None:
    digest = fake.put_manifest("r", EMPTY_INDEX, tag="t", kind=MediaType.INDEX)
    fake.stated_digest = ""
    async with client(fake.host) as registry:
        assert (await registry.get_manifest("r", "t")).digest == digest


async def test_registry_that_stores_another_manifest_digest_is_an_error(
    fake: FakeRegistry,
) -> None:
    document = ParsedDocument(EMPTY_INDEX, MediaType.INDEX, Index(manifests=()))
    async with client(fake.host) as registry:
        await registry.push_manifest("r", document, "t")
        fake.stated_digest = sha256(OTHER_INDEX)
        with pytest.raises(ChecksumError, match="the registry stored"):
            await registry.push_manifest("r", document, "t")
        fake.stated_digest = ""
        await registry.push_manifest("r", document, "t")


@pytest.mark.parametrize("layers", [0, 2])
async def test_config_with_other_layers_than_the_manifest_is_rejected(
    fake: FakeRegistry, layers: int
) -> None:
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [BIG_DIGEST]},
        }
    ).encode()
    digest = Digest(fake.put_blob("r", config))
    layer = Descriptor(MediaType.LAYER, Digest(BIG_DIGEST), len(BIG))

    def manifest(count: int) -> Manifest:
        return Manifest(Descriptor(MediaType.CONFIG, digest, len(config)), (layer,) * count)

    async with client(fake.host) as registry:
        assert (await registry.get_image("r", manifest(1))).diff_ids == (DiffId(BIG_DIGEST),)
        with pytest.raises(OutsideError, match="list different layers"):
            await registry.get_image("r", manifest(layers))


async def test_range_that_starts_too_late_is_rejected(fake: FakeRegistry) -> None:
    fake.faults = [RegistryFault(path="/blobs/", drop_after=1 << 20)]
    fake.shift = 1
    with pytest.raises(OutsideError, match="sent a different range"):
        await fetch(fake)


async def test_overlap_of_a_range_that_starts_too_early_is_skipped(fake: FakeRegistry) -> None:
    fake.faults = [RegistryFault(path="/blobs/", drop_after=1 << 20)]
    fake.shift = -1000
    assert await fetch(fake) == BIG


async def test_upload_on_another_host_is_not_cancelled_there(fake: FakeRegistry) -> None:
    async with FakeRegistry() as other:
        async with client(fake.host, login=ME) as registry:
            assert not await registry.mount_blob("r", sha256(b"missing"), "source")
            assert len(fake.requests("DELETE")) == 1
            fake.uploads_at = other.url
            assert not await registry.mount_blob("r", sha256(b"missing"), "source")
            assert len(fake.requests("DELETE")) == 1
        assert other.log == []


async def test_identity_token_is_not_sent_to_another_host_on_a_redirect(fake: FakeRegistry) -> None:
    async with FakeRegistry() as thief:
        fake.users, fake.identity_tokens = {"x": "y"}, {"refresh": "me"}
        fake.faults = [
            RegistryFault(
                path="/token", status=307, times=9, headers={"Location": f"{thief.url}/token"}
            )
        ]
        with pytest.raises(OutsideError):
            await fetch(fake, login=RegistryCredentials(identity_token="refresh"))
        assert thief.log == []


@pytest.mark.parametrize(("life", "kept"), [(300, 290), (4, 2), (0, 50)])
async def test_token_is_renewed_shortly_before_it_expires(
    fake: FakeRegistry, life: float, kept: float
) -> None:
    async def lookup(_: str, rejected: object) -> RegistryCredentials | None:
        return ME

    now = 1000.0
    fake.users, fake.token_life = {"me": "secret"}, life
    async with Registry(RegistryEndpoint(fake.host), lookup=lookup, clock=lambda: now) as registry:
        await registry.has_blob("r", BIG_DIGEST)
        now += kept
        await registry.has_blob("r", BIG_DIGEST)
        assert len(fake.requests(path="/token")) == 1
        now += 0.5
        await registry.has_blob("r", BIG_DIGEST)
        assert len(fake.requests(path="/token")) == 2


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        ("http://r.example/u", "https://r.example/u"),
        ("http://r.example:5000/u", "http://r.example:5000/u"),
        ("http://other.example/u", "http://other.example/u"),
        ("/u?x=1", "https://r.example/u?x=1"),
    ],
)
async def test_upload_location_behind_a_tls_proxy_keeps_https(said: str, taken: str) -> None:
    upload = BlobUpload(
        RegistryTransport(RegistryEndpoint("r.example")),
        "r",
        BIG_DIGEST,
        b"",
        scope="",
        progress=print,
    )
    upload._update_location(
        SimpleNamespace(headers={"Location": said}, url=URL("https://r.example/v2/"))  # type: ignore[arg-type]
    )
    assert str(upload._location) == taken


@pytest.mark.parametrize("status", [401, 403, 404, 405])
async def test_blob_is_sent_if_the_registry_cannot_mount_it(
    fake: FakeRegistry, status: int
) -> None:
    digest = fake.put_blob("source", b"mounted")
    fake.faults = [RegistryFault(method="POST", path="/uploads/", status=status, times=2)]
    async with client(fake.host) as registry:
        assert not await registry.mount_blob("r", Digest(digest), "source")


@pytest.mark.parametrize("status", [400, 404, 405, 416])
async def test_upload_restarts_if_its_progress_cannot_be_queried(
    fake: FakeRegistry, status: int
) -> None:
    content = random.Random(6).randbytes(2 << 20)
    fake.faults = [
        RegistryFault(method="PATCH", drop_after=1 << 20),
        RegistryFault(method="GET", path="/uploads/", status=status),
    ]
    async with client(fake.host) as registry:
        await registry.push_blob("r", sha256(content), content)
    assert fake.blobs[sha256(content)] == content
    assert len(fake.requests("POST", "/uploads/")) == 2


async def test_first_of_several_concurrent_errors_is_raised() -> None:
    async def fail() -> int:
        raise OutsideError("broken")

    async def work() -> int:
        return 1

    assert await run_concurrently([work, work], limit=1) == [1, 1]
    with pytest.raises(OutsideError, match="broken"):
        await run_concurrently([work, fail, fail], limit=3)
