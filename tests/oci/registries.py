"""Registries for tests: the fake one and Debian's real one, with images in them."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from danlu.oci.registry import Registry, RegistryCredentials, RegistryEndpoint
from danlu.util.retry import RetryPolicy
from tests.ports import free_port

ROUTINE = RetryPolicy(attempts=4, initial_delay=0.0, max_delay=0.0)


async def nobody(host: str, rejected: object) -> RegistryCredentials | None:
    return None


async def no_pause(seconds: float) -> None:
    return


@asynccontextmanager
async def client(
    host: str,
    *,
    login: RegistryCredentials | None = None,
    ca: str = "",
    insecure: bool = False,
    backoff: RetryPolicy = ROUTINE,
) -> AsyncIterator[Registry]:
    async def lookup(_: str, rejected: object) -> RegistryCredentials | None:
        return login

    endpoint = RegistryEndpoint(host, ca=ca, insecure=insecure)
    async with Registry(endpoint, lookup=lookup, backoff=backoff, sleep=no_pause) as registry:
        yield registry


@contextmanager
def debian_registry(*, htpasswd: str = "", log: Path | None = None) -> Iterator[str]:
    """``docker-registry`` of the distribution, with an empty store; gives its host and port.

    ``log`` gets its access log, a line a request.
    """
    directory = Path(tempfile.mkdtemp(prefix="danlu-registry-"))
    port = free_port()
    config: dict[str, object] = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(directory / "data")}},
        "http": {"addr": f"127.0.0.1:{port}"},
        "log": {"level": "error", "accesslog": {"disabled": log is None}},
    }
    if htpasswd:
        (directory / "htpasswd").write_text(htpasswd)
        config["auth"] = {"htpasswd": {"realm": "real", "path": str(directory / "htpasswd")}}
    (directory / "config.yml").write_text(json.dumps(config))
    program = shutil.which("docker-registry")
    assert program is not None
    with (log or Path(os.devnull)).open("ab") as output:
        process = subprocess.Popen(
            [program, "serve", str(directory / "config.yml")], stdout=output, stderr=output
        )
    try:
        wait_for_port(port)
        yield f"localhost:{port}"
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(directory)


def wait_for_port(port: int) -> None:
    """Wait until it answers; the kernel does not report when a port begins to listen."""
    end = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def make_certificate(place: Path) -> tuple[ssl.SSLContext, Path]:
    """A self-signed certificate for localhost."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    key, certificate = place / "key.pem", place / "cert.pem"
    subprocess.run(
        [*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
