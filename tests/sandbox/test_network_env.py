"""Certificates and proxies of this machine, as a program in a container finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.sandbox.network_env import (
    RUN_DIRECTORY,
    certificate_mounts,
    find_ca_bundle,
    network_variables,
    proxy_variables,
)

#: The programs' own documentation: curl, git, OpenSSL, Requests, pip, Node.js, gRPC and so on.
CERTIFICATES = {
    *("AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", "CURL_CA_BUNDLE"),
    *("DENO_CERT", "GIT_SSL_CAINFO", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "HTTPLIB2_CA_CERTS"),
    *("NIX_SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE"),
    "SSL_CERT_FILE",
}
#: Those that a user sets on the machine, the first that is a file counts.
OWN = ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO"]


@pytest.mark.parametrize("name", OWN)
def test_users_certificates_reach_every_program(tmp_path: Path, name: str) -> None:
    bundle = tmp_path / "real.pem"
    bundle.write_text("certificates")
    (tmp_path / "link.pem").symlink_to(bundle)
    environ = {name: str(tmp_path / "link.pem")}
    (mount,) = certificate_mounts(environ)
    assert (mount.source, mount.readonly) == (bundle, True)
    assert network_variables(environ) == dict.fromkeys(CERTIFICATES, mount.target)
    assert mount.target.startswith(f"{RUN_DIRECTORY}/")


def test_first_variable_that_names_a_file_counts(tmp_path: Path) -> None:
    for name in OWN:
        (tmp_path / name).write_text("certificates")
    environ = {name: str(tmp_path / name) for name in OWN}
    for name in OWN:
        assert find_ca_bundle(environ) == tmp_path / name
        environ[name] = str(tmp_path / "missing")


def test_proxies_are_passed_in_both_spellings() -> None:
    environ = {
        "http_proxy": "http://a",
        "HTTPS_PROXY": "http://b",
        "ALL_PROXY": "http://c",
        "no_proxy": "d",
        "FTP_PROXY": "",
        "OTHER": "e",
    }
    assert proxy_variables(environ) == {
        **dict.fromkeys(("http_proxy", "HTTP_PROXY"), "http://a"),
        **dict.fromkeys(("https_proxy", "HTTPS_PROXY"), "http://b"),
        **dict.fromkeys(("all_proxy", "ALL_PROXY"), "http://c"),
        **dict.fromkeys(("no_proxy", "NO_PROXY"), "d"),
    }
