"""What a step needs to reach the network as this machine does: certificates, proxies, mirrors.

All of it is environment variables and read-only mounts of one run; none of it ends up in a layer.
The process's own environment and the image's own configuration files win. Settings of pip and uv
and passwords reach only images that were built here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from danlu.sandbox import pip_indexes
from danlu.sandbox.types import Mount

RUN_DIRECTORY = "/run/danlu"

_CA_VARIABLES = (
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
_HOST_CA_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
)
#: Where distributions keep their CA bundle.
SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")


class NetworkEnvironment(msgspec.Struct, frozen=True):
    """Variables and mounts; ``defaults`` are files that are mounted only if the image has none."""

    environment: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    defaults: tuple[Mount, ...] = ()


def detect_network_environment(
    work: Path, environ: Mapping[str, str] | None = None, *, trusted: bool
) -> NetworkEnvironment:
    """Return everything that this machine gives a program with network access.

    Unless its image is ``trusted`` (:attr:`danlu.store.StoredImage.is_built_here`), these are
    certificates and proxies without passwords. Configuration files are written below ``work``,
    which must exist as long as the runs do.
    """
    env = os.environ if environ is None else environ
    if not trusted:
        variables = network_variables(env)
        return NetworkEnvironment(
            {name: _strip_password(value) for name, value in variables.items()},
            certificate_mounts(env),
        )
    indexes = pip_indexes.read_indexes(env)
    defaults = pip_indexes.write_config_files(indexes, work)
    return NetworkEnvironment(
        {**network_variables(env), **pip_indexes.passed_variables(env)},
        (*certificate_mounts(env), *indexes.mounts),
        defaults,
    )


def _strip_password(address: str) -> str:
    """Return a proxy's address, which may lack a scheme, without user and password."""
    scheme, separator, rest = address.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def network_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for the certificates' path inside, and this machine's proxies."""
    variables = proxy_variables(environ)
    if find_ca_bundle(environ) is not None:
        variables.update(dict.fromkeys(_CA_VARIABLES, f"{RUN_DIRECTORY}/ca.pem"))
    return variables


def certificate_mounts(environ: Mapping[str, str]) -> tuple[Mount, ...]:
    """Return a mount of this machine's CA bundle, if it has one."""
    path = find_ca_bundle(environ)
    return () if path is None else (Mount(f"{RUN_DIRECTORY}/ca.pem", path, readonly=True),)


def find_ca_bundle(environ: Mapping[str, str]) -> Path | None:
    """Return the file of CA certificates that the user configured, else the system's."""
    named = [environ.get(name, "") for name in _HOST_CA_VARIABLES]
    for name in (*named, *SYSTEM_BUNDLES):
        if name and os.path.isfile(name) and os.access(name, os.R_OK):
            # Bind-mount the file itself: distributions use symbolic links here.
            return Path(os.path.realpath(name))
    return None


def proxy_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the proxy variables in both spellings, because programs read one or the other."""
    variables: dict[str, str] = {}
    for name in _PROXY_VARIABLES:
        value = environ.get(name) or environ.get(name.upper())
        if value:
            variables[name] = variables[name.upper()] = value
    return variables
