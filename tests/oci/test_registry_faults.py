"""The client against a registry that fails, lies, and asks who we are."""

from __future__ import annotations

import base64
import json
import os
import random
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from danlu.errors import ChecksumError, OutsideError, TemporaryError
from danlu.oci.digest import Digest, sha256
from danlu.oci.registry import Credentials, docker_credentials
from danlu.oci.registry.auth import parse_challenges
from danlu.oci.types import MAX_DOCUMENT, Descriptor
from danlu.testing.registry import FakeRegistry, Fault
from danlu.util.retry import Backoff
from tests.oci.registries import client

pytestmark = pytest.mark.anyio
BIG = random.Random(3).randbytes(3 << 20)
BIG_DIGEST = sha256(BIG)
ME = Credentials("me", "secret")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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
    login: Credentials | None = None,
) -> bytes:
    pieces: list[bytes] = []
    async with client(fake.host, login=login) as registry:
        await registry.blob("r", Descriptor("x", Digest(digest), size), pieces.append)
    return b"".join(pieces)


async def test_a_dropped_download_goes_on_where_it_ended(fake: FakeRegistry) -> None:
    fake.faults = [Fault(path="/blobs/", drop_after=1 << 20, times=2)]
    assert await fetch(fake) == BIG
    asked = [one.headers.get("Range") for one in fake.requests("GET", "/blobs/")]
    assert asked[0] is None
    begins = [int(one.removeprefix("bytes=").rstrip("-")) for one in asked[1:] if one]
    assert len(begins) == 2
    assert 0 < begins[0] <= 1 << 20
    assert begins[0] < begins[1] <= 2 << 20


async def test_a_registry_without_ranges_is_read_again_from_the_start(fake: FakeRegistry) -> None:
    fake.ranges = False
    fake.faults = [Fault(path="/blobs/", drop_after=2 << 20)]
    assert await fetch(fake) == BIG


async def test_drops_that_bring_something_are_no_failures(fake: FakeRegistry) -> None:
    fake.faults = [Fault(path="/blobs/", drop_after=100 << 10, times=20)]
    assert await fetch(fake) == BIG


async def test_a_registry_that_only_drops_is_given_up(fake: FakeRegistry) -> None:
    fake.faults = [Fault(path="/blobs/", drop_after=10, times=100)]
    with pytest.raises(TemporaryError):
        await fetch(fake)
    assert len(fake.requests("GET", "/blobs/")) == 4


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_moments_of_weakness_pass(fake: FakeRegistry, status: int) -> None:
    fake.faults = [Fault(path="/blobs/", status=status, times=3)]
    assert await fetch(fake) == BIG


async def test_lasting_weakness_is_a_temporary_error_with_the_registrys_words(
    fake: FakeRegistry,
) -> None:
    fake.faults = [Fault(path="/blobs/", status=503, times=99)]
    with pytest.raises(TemporaryError, match=r"cannot answer .* now \(503: told to fail\)"):
        await fetch(fake)


async def test_the_pause_a_registry_asks_for_is_kept(fake: FakeRegistry) -> None:
    from danlu.oci.registry import Endpoint, Registry
    from tests.oci.registries import nobody

    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    fake.faults = [Fault(path="/tags/", status=429, headers={"Retry-After": "7"})]
    fake.put_manifest("r", b"{}", tag="t")
    backoff = Backoff(attempts=3, first=0.1)
    async with Registry(
        Endpoint(fake.host), lookup=nobody, backoff=backoff, sleep=sleep
    ) as registry:
        assert await registry.tags("r") == ["t"]
    assert pauses == [7.0]


async def test_refusals_are_not_tried_again(fake: FakeRegistry) -> None:
    fake.faults = [Fault(path="/blobs/", status=400, times=99)]
    with pytest.raises(OutsideError, match="answered 400"):
        await fetch(fake)
    assert len(fake.requests("GET", "/blobs/")) == 1


@pytest.mark.parametrize("wrong", [BIG[:-1] + b"\0", BIG + b"\0", BIG[:-5], b""])
async def test_a_wrong_blob_is_never_taken(fake: FakeRegistry, wrong: bytes) -> None:
    fake.wrong[BIG_DIGEST] = wrong
    with pytest.raises((ChecksumError, TemporaryError)):
        await fetch(fake)


async def test_a_wrong_size_in_the_manifest_is_found(fake: FakeRegistry) -> None:
    with pytest.raises(ChecksumError, match="sent more than"):
        await fetch(fake, size=len(BIG) - 1)


@pytest.mark.parametrize("by_tag", [True, False])
async def test_a_wrong_manifest_is_never_taken(fake: FakeRegistry, by_tag: bool) -> None:
    digest = fake.put_manifest("r", b'{"schemaVersion":2,"manifests":[]}', tag="t")
    fake.wrong[digest] = b'{"schemaVersion":2,"manifests":[] }'
    async with client(fake.host) as registry:
        with pytest.raises(ChecksumError):
            await registry.manifest("r", "t" if by_tag else digest)


async def test_an_endless_manifest_is_refused(fake: FakeRegistry) -> None:
    fake.put_manifest("r", b"{" + b" " * (MAX_DOCUMENT + 10) + b"}", tag="t")
    async with client(fake.host) as registry:
        with pytest.raises(OutsideError, match="bigger than any should be"):
            await registry.manifest("r", "t")


async def test_an_interrupted_upload_goes_on_where_it_ended(
    fake: FakeRegistry, tmp_path: Path
) -> None:
    content = random.Random(4).randbytes(4 << 20)
    (tmp_path / "blob").write_bytes(content)
    fake.faults = [Fault(method="PATCH", drop_after=1 << 20, times=2)]
    async with client(fake.host) as registry:
        await registry.push_blob("r", sha256(content), tmp_path / "blob")
    assert fake.blobs[sha256(content)] == content
    ranges = [one.headers["Content-Range"] for one in fake.requests("PATCH")]
    assert len(ranges) == 3
    assert ranges[0].startswith("0-")
    assert int(ranges[2].partition("-")[0]) >= 2 << 20


async def test_an_upload_that_cannot_go_on_begins_anew(fake: FakeRegistry, tmp_path: Path) -> None:
    content = random.Random(5).randbytes(2 << 20)
    (tmp_path / "blob").write_bytes(content)
    fake.resumable = False
    fake.faults = [Fault(method="PATCH", drop_after=1 << 20)]
    sent: list[int] = []
    async with client(fake.host) as registry:
        await registry.push_blob("r", sha256(content), tmp_path / "blob", progress=sent.append)
    assert fake.blobs[sha256(content)] == content
    assert sum(sent) == len(content)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(method="POST", status=503, times=2),
        Fault(method="PUT", status=500, times=2),
        Fault(method="PUT", drop_after=3, times=2),
        Fault(method="PATCH", status=502, times=2),
    ],
)
@pytest.mark.parametrize("size", [1000, 2 << 20])
async def test_uploads_survive_moments_of_weakness(
    fake: FakeRegistry, fault: Fault, size: int
) -> None:
    content = random.Random(size).randbytes(size)
    fake.faults = [Fault(fault.method, times=2, status=fault.status, drop_after=fault.drop_after)]
    async with client(fake.host) as registry:
        await registry.push_blob("r", sha256(content), content)
    assert fake.blobs[sha256(content)] == content


async def test_nothing_listens(fake: FakeRegistry) -> None:
    from tests.oci.registries import free_port

    async with client(f"localhost:{free_port()}") as registry:
        with pytest.raises(TemporaryError, match="cannot reach localhost"):
            await registry.ping()


# Who we are


@pytest.mark.parametrize("tokens", [True, False])
async def test_a_login_opens_the_door(fake: FakeRegistry, tokens: bool) -> None:
    fake.users, fake.tokens = {"me": "secret"}, tokens
    assert await fetch(fake, login=ME) == BIG
    async with client(fake.host, login=ME) as registry:
        await registry.push_blob("new", sha256(b"x"), b"x")


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("login", [None, Credentials("me", "wrong")])
async def test_without_a_login_the_hint_says_how(
    fake: FakeRegistry, tokens: bool, login: Credentials | None
) -> None:
    fake.users, fake.tokens = {"me": "secret"}, tokens
    with pytest.raises(OutsideError, match="refuses access") as caught:
        await fetch(fake, login=login)
    assert f"docker login {fake.host}" in caught.value.hint


async def test_everybody_may_pull_what_is_public(fake: FakeRegistry) -> None:
    fake.users, fake.public = {"me": "secret"}, True
    assert await fetch(fake) == BIG


async def test_one_token_serves_many_requests(fake: FakeRegistry) -> None:
    fake.users = {"me": "secret"}
    async with client(fake.host, login=ME) as registry:
        for _ in range(5):
            assert await registry.has_blob("r", BIG_DIGEST)
    assert len(fake.requests(path="/token")) == 1


async def test_a_token_that_ended_is_asked_for_anew(fake: FakeRegistry) -> None:
    fake.users = {"me": "secret"}
    async with client(fake.host, login=ME) as registry:
        assert await registry.has_blob("r", BIG_DIGEST)
        fake.revoke_tokens()
        assert await registry.has_blob("r", BIG_DIGEST)


async def test_an_identity_token_is_exchanged(fake: FakeRegistry) -> None:
    fake.users, fake.identity_tokens = {"x": "y"}, {"refresh": "me"}
    assert await fetch(fake, login=Credentials(identity_token="refresh")) == BIG
    assert [one.method for one in fake.requests(path="/token")] == ["POST"]


async def test_a_password_goes_to_no_other_host_on_a_redirect(fake: FakeRegistry) -> None:
    async with FakeRegistry() as other:
        other.put_blob("r", BIG)
        fake.users, fake.tokens = {"me": "secret"}, False
        fake.redirect_blobs_to = other.url
        assert await fetch(fake, login=ME) == BIG
        assert len(other.log) == 1
        assert "Authorization" not in other.log[0].headers


@pytest.mark.parametrize("tokens", [True, False])
async def test_a_host_we_are_sent_to_cannot_ask_for_our_password(
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
        assert {one.method for one in thief.log} == {"GET", "PUT"}
        assert not any("Authorization" in one.headers for one in thief.log)
        assert thief.requests(path="/token") == []


async def test_passwords_are_not_sent_in_the_clear(tmp_path: Path) -> None:
    tls, ca = certificate(tmp_path)
    async with FakeRegistry() as thief, FakeRegistry(tls=tls) as fake:
        fake.put_blob("r", b"x")
        fake.users, fake.realm = {"me": "secret"}, f"{thief.url}/token"
        async with client(fake.host, login=ME, ca=str(ca)) as registry:
            with pytest.raises(OutsideError, match="unencrypted"):
                await registry.has_blob("r", sha256(b"x"))
        assert thief.log == []


def certificate(place: Path) -> tuple[ssl.SSLContext, Path]:
    """A certificate for localhost that nobody has signed."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    key, certificate = place / "key.pem", place / "cert.pem"
    subprocess.run(
        [*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate


async def test_a_certificate_of_ones_own_is_trusted_where_named(tmp_path: Path) -> None:
    tls, ca = certificate(tmp_path)
    async with FakeRegistry(tls=tls) as fake:
        fake.put_blob("r", b"x")
        async with client(fake.host, ca=str(ca)) as registry:
            assert await registry.has_blob("r", sha256(b"x"))


async def test_an_unknown_certificate_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from danlu.oci.registry import Endpoint

    # Registries on this machine are trusted; this one shall count as one elsewhere.
    monkeypatch.setattr(Endpoint, "is_local", property(lambda self: False))
    tls, ca = certificate(tmp_path)
    async with FakeRegistry(tls=tls) as fake:
        async with client(fake.host) as registry:
            with pytest.raises(OutsideError, match="cannot be trusted") as caught:
                await registry.ping()
            assert "SSL_CERT_FILE" in caught.value.hint
        async with client(fake.host, insecure=True) as registry:
            await registry.ping()
        monkeypatch.setenv("SSL_CERT_FILE", str(ca))
        async with client(fake.host) as registry:
            await registry.ping()


async def test_plain_http_is_for_this_machine_and_the_insecure_only(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    from danlu.oci.registry import Endpoint

    monkeypatch.setattr(Endpoint, "is_local", property(lambda self: False))
    async with client(fake.host) as registry:
        with pytest.raises(OutsideError):
            await registry.ping()
    async with client(fake.host, insecure=True) as registry:
        await registry.ping()


async def test_a_proxy_of_the_environment_is_used(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", fake.url)
    monkeypatch.setenv("https_proxy", fake.url)
    monkeypatch.setenv("no_proxy", "")
    async with client("registry.invalid:80", insecure=True) as registry:
        assert await registry.has_blob("r", BIG_DIGEST)
    assert await fetch(fake) == BIG
    hosts = {one.headers["Host"] for one in fake.log}
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
async def test_nonsense_is_one_of_our_errors(fake: FakeRegistry, answer: bytes) -> None:
    fake.put_manifest("r", answer, tag="t", kind="application/octet-stream")
    async with client(fake.host) as registry:
        with pytest.raises(OutsideError):
            await registry.manifest("r", "t")


def test_challenges_of_many_makes_are_understood() -> None:
    one = 'Bearer realm="https://a/t?x=1,2",service="s, \\"q\\"",scope="repository:a/b:pull,push"'
    (bearer,) = parse_challenges([one])
    assert bearer.scheme == "bearer"
    assert bearer.parameters == {
        "realm": "https://a/t?x=1,2",
        "service": 's, "q"',
        "scope": "repository:a/b:pull,push",
    }
    both = parse_challenges(['Basic realm="x", Bearer realm=https://a/t'])
    assert [(one.scheme, dict(one.parameters)) for one in both] == [
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


def encoded(text: str) -> str:
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
    environ = config(tmp_path, {"auths": {"other": {}, key: {"auth": encoded("me:pa:ss")}}})
    assert await docker_credentials(host, environ) == Credentials("me", "pa:ss")
    assert await docker_credentials("elsewhere.example.com", environ) is None


async def test_identity_tokens_are_found(tmp_path: Path) -> None:
    entry = {"auth": encoded("00000000:"), "identitytoken": "refresh"}
    environ = config(tmp_path, {"auths": {"h": entry}})
    found = await docker_credentials("h", environ)
    assert found is not None
    assert found.identity_token == "refresh"


def helper(place: Path, name: str, script: str) -> None:
    path = place / f"docker-credential-{name}"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


async def test_credential_helpers_are_asked(tmp_path: Path) -> None:
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
    assert await docker_credentials("h", environ) == Credentials("me", "s")
    hub = await docker_credentials("docker.io", environ)
    assert hub == Credentials("https://index.docker.io/v1/", "s")


@pytest.mark.parametrize(
    "value",
    [
        {"credsStore": "missing"},
        {"credsStore": "../../bin/sh"},
        {"credsStore": 5, "auths": []},
        {"auths": {"h": {"auth": "!!!"}}},
        {"auths": {"h": {"auth": encoded("nocolon")}}},
        {"auths": {"h": None}},
        [],
    ],
)
async def test_a_broken_login_is_no_login(tmp_path: Path, value: object) -> None:
    assert await docker_credentials("h", config(tmp_path, value)) in (
        None,
        Credentials("nocolon", ""),
    )


async def test_podman_logins_are_found_too(tmp_path: Path) -> None:
    environ = config(tmp_path, {})
    (tmp_path / "containers").mkdir()
    (tmp_path / "containers/auth.json").write_text(
        json.dumps({"auths": {"h": {"auth": encoded("pod:man")}}})
    )
    environ["XDG_RUNTIME_DIR"] = str(tmp_path)
    assert await docker_credentials("h", environ) == Credentials("pod", "man")


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(Credentials("me", "secret", "secret"))
