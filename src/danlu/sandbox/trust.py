"""What a step needs to reach the network as this machine does: certificates, proxies, mirrors.

All of it is environment and read-only mounts of one run; nothing of it is in a layer. What the
process's own environment says wins, and so do configuration files that the image has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from danlu.sandbox.types import Mount

__all__ = ["DIRECTORY", "NOTHING", "SYSTEM_BUNDLES", "Trust", "environment", "gather", "mounts"]

DIRECTORY = "/run/danlu"

_BUNDLE_NAMES = (
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "CURL_CA_BUNDLE",
    "DENO_CERT",
    "GIT_SSL_CAINFO",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "HTTPLIB2_CA_CERTS",
    "NIX_SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
)
_ASKED = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO")
#: Where distributions keep the certificates they trust.
SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")


class Trust(msgspec.Struct, frozen=True):
    """Variables and mounts; ``defaults`` are files that only an image without its own is given."""

    environment: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    defaults: tuple[Mount, ...] = ()


NOTHING = Trust({})


def gather(work: Path, environ: Mapping[str, str] | None = None) -> Trust:
    """Everything of this machine that a step with network is given.

    Configuration files are written below ``work``, which must live as long as the runs do.
    """
    from danlu.sandbox import indexes

    env = os.environ if environ is None else environ
    found = indexes.read(env)
    defaults = indexes.write(found, work)
    return Trust(
        {**environment(env), **indexes.environment(env)},
        (*mounts(env), *found.mounts),
        defaults,
    )


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that name the certificates' place inside, and the machine's proxies."""
    found = proxies(environ)
    if bundle(environ) is not None:
        found.update(dict.fromkeys(_BUNDLE_NAMES, f"{DIRECTORY}/ca.pem"))
    return found


def mounts(environ: Mapping[str, str]) -> tuple[Mount, ...]:
    """The machine's bundle of certificates, if it has one."""
    path = bundle(environ)
    return () if path is None else (Mount(f"{DIRECTORY}/ca.pem", path, readonly=True),)


def bundle(environ: Mapping[str, str]) -> Path | None:
    """The file of certificates this machine trusts: what the user names, else the system's."""
    named = [environ.get(name, "") for name in _ASKED]
    for name in (*named, *SYSTEM_BUNDLES):
        if name and os.path.isfile(name) and os.access(name, os.R_OK):
            # A bind mount shows one file: follow the links that distributions put here.
            return Path(os.path.realpath(name))
    return None


def proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """The proxy variables, in both spellings: programs read one or the other."""
    found: dict[str, str] = {}
    for name in _PROXIES:
        value = environ.get(name) or environ.get(name.upper())
        if value:
            found[name] = found[name.upper()] = value
    return found
