"""Kubeconfigs, service accounts and credentials, read as client-go does; no secrets in errors."""

from __future__ import annotations

import base64
import json
import stat
import sys
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from danlu.errors import MachineError, OutsideError, UsageError
from danlu.kube.config import ClusterConfig, StaticCredentials
from danlu.kube.exec_plugin import ExecConfig, ExecPlugin
from danlu.kube.kubeconfig import load_cluster_config, load_in_cluster_config, load_kubeconfig
from tests.fakes.kubernetes import VirtualClock

pytestmark = pytest.mark.anyio
SECRET = "a-secret-of-its-owner"


def encode_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def config(
    path: Path, user: dict[str, Any], cluster: dict[str, Any] | None = None, name: str = "one"
) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [
            {"name": name, "cluster": {"server": f"https://{name}:6443", **(cluster or {})}}
        ],
        "users": [{"name": name, "user": user}],
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": name, "namespace": f"ns-{name}"}}
        ],
    }
    path.write_text(yaml.safe_dump(document))
    return path


async def headers(access: ClusterConfig) -> dict[str, str]:
    return dict((await access.credentials.get_identity()).headers)


async def test_a_context_sets_server_namespace_and_credentials(tmp_path: Path) -> None:
    cluster = {
        "certificate-authority-data": encode_base64("PEM"),
        "tls-server-name": "inner",
        "proxy-url": "http://proxy:3128",
    }
    access = load_kubeconfig([config(tmp_path / "config", {"token": "t"}, cluster)])
    assert (access.server, access.namespace) == ("https://one:6443", "ns-one")
    assert (access.ca, access.server_name, access.proxy) == (
        b"PEM",
        "inner",
        "http://proxy:3128",
    )
    assert not access.insecure
    assert await headers(access) == {"Authorization": "Bearer t"}


async def test_files_are_merged_and_the_first_has_the_word(tmp_path: Path) -> None:
    first = config(tmp_path / "a", {"token": "1"}, name="one")
    second = config(tmp_path / "b", {"token": "2"}, name="two")
    environ = {"KUBECONFIG": f"{first}:{tmp_path / 'none'}:{second}"}
    assert load_cluster_config(environ=environ).server == "https://one:6443"
    assert load_cluster_config(environ=environ, context="two").server == "https://two:6443"
    override = config(tmp_path / "c", {"token": "3"}, name="two")
    environ = {"KUBECONFIG": f"{override}:{second}"}
    assert await headers(load_cluster_config(environ=environ)) == {"Authorization": "Bearer 3"}


async def test_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "ca.crt").write_bytes(b"CA")
    (inner / "token").write_text("from-file\n")
    path = config(inner / "config", {"tokenFile": "token"}, {"certificate-authority": "ca.crt"})
    access = load_kubeconfig([path])
    assert access.ca == b"CA"
    assert await headers(access) == {"Authorization": "Bearer from-file"}


async def test_a_password_and_impersonation_become_headers(tmp_path: Path) -> None:
    user = {"username": "u", "password": "p", "as": "other", "as-groups": ["a", "b"]}
    access = load_kubeconfig([config(tmp_path / "config", user)])
    result = (await access.credentials.get_identity()).headers
    assert ("Authorization", "Basic " + encode_base64("u:p")) in result
    assert ("Impersonate-User", "other") in result
    assert [value for name, value in result if name == "Impersonate-Group"] == ["a", "b"]


async def test_certificates_are_data_or_files(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(b"KEY")
    user = {"client-certificate-data": encode_base64("CERT"), "client-key": "key.pem"}
    access = load_kubeconfig([config(tmp_path / "config", user)])
    result = (await access.credentials.get_identity()).certificate
    assert result is not None
    assert (result.chain, result.key) == (b"CERT", b"KEY")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"current-context": ""}, "no current context"),
        ({"current-context": "two"}, "context 'two' not found"),
        ({"clusters": []}, "cluster 'one' not found"),
        ({"users": None}, "user 'one' not found"),
        ({"clusters": [{"name": "one", "cluster": {}}]}, "has no server"),
        ({"clusters": [{"name": "one", "cluster": {"server": "ht!tp://x"}}]}, "invalid server"),
        ({"contexts": "x"}, "invalid kubeconfig"),
        (
            {"users": [{"name": "one", "user": {"auth-provider": {"name": "gcp"}}}]},
            "auth-provider gcp",
        ),
        (
            {
                "clusters": [
                    {"name": "one", "cluster": {"server": "https://x", "proxy-url": "socks5://p"}}
                ]
            },
            "SOCKS",
        ),
        (
            {"users": [{"name": "one", "user": {"client-certificate-data": SECRET + "!"}}]},
            "not valid base64",
        ),
    ],
)
def test_kubeconfig_errors_do_not_contain_secrets(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = config(tmp_path / "config", {"token": SECRET})
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    with pytest.raises(UsageError, match=message) as caught:
        load_kubeconfig([path])
    assert SECRET not in f"{caught.value} {caught.value.hint} {caught.value.__context__}"


def test_invalid_yaml_is_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(f"users: [{{token: {SECRET}\n  : :")
    with pytest.raises(UsageError, match="invalid YAML") as caught:
        load_kubeconfig([path])
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_missing_kubeconfig_error_names_the_searched_places(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no kubeconfig found") as caught:
        load_cluster_config(environ={"HOME": str(tmp_path)})
    assert "KUBECONFIG" in caught.value.hint


async def test_a_pod_speaks_as_its_service_account(tmp_path: Path) -> None:
    for name, text in (("token", "one"), ("ca.crt", "CA"), ("namespace", "space\n")):
        (tmp_path / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    access = load_cluster_config(environ=environ, service_account=tmp_path)
    assert (access.server, access.namespace, access.ca) == (
        "https://[fd00::1]:6443",
        "space",
        b"CA",
    )
    assert await headers(access) == {"Authorization": "Bearer one"}
    with pytest.raises(UsageError, match="not running in a pod"):
        load_in_cluster_config(environ={}, service_account=tmp_path)


async def test_a_token_file_is_read_again_each_minute_and_after_a_401(
    tmp_path: Path, clock: VirtualClock
) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    stated = StaticCredentials(token_file=path, clock=clock)
    access = ClusterConfig(server="x", credentials=stated)
    assert await headers(access) == {"Authorization": "Bearer one"}
    path.write_text("two")
    await clock.advance(59)
    assert await headers(access) == {"Authorization": "Bearer one"}
    await clock.advance(1)
    assert await headers(access) == {"Authorization": "Bearer two"}
    path.write_text("three")
    assert stated.invalidate()
    assert await headers(access) == {"Authorization": "Bearer three"}
    path.unlink()
    await clock.advance(60)
    assert await headers(access) == {"Authorization": "Bearer three"}
    assert not StaticCredentials(token="t").invalidate()


async def test_a_missing_token_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        await StaticCredentials(token_file=tmp_path / "none").get_identity()


def program(tmp_path: Path, body: str) -> str:
    path = tmp_path / "plugin"
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(body)}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def plugin(command: str, clock: VirtualClock, **fields: Any) -> ExecPlugin:
    spec = msgspec.convert({"command": command, **fields}, ExecConfig)
    return ExecPlugin(spec, cluster={"server": "https://one:6443"}, clock=clock)


ANSWER = """
    import json, os, pathlib
    count = pathlib.Path(__file__).with_name("count")
    number = int(count.read_text()) + 1 if count.exists() else 1
    count.write_text(str(number))
    info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
    pathlib.Path(__file__).with_name("info").write_text(json.dumps(info))
    status = {"token": f"token-{number}-{os.environ.get('EXTRA', '')}", **STATUS}
    answer = {"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}
    print(json.dumps(answer))
"""


async def test_a_token_of_a_credential_plugin_is_cached_until_it_expires(
    tmp_path: Path, clock: VirtualClock
) -> None:
    ends = (clock.now() + timedelta(seconds=100)).isoformat().replace("+00:00", "Z")
    status = repr({"expirationTimestamp": ends})
    command = program(tmp_path, ANSWER.replace("**STATUS", f"**{status}"))
    credentials = plugin(
        command, clock, env=[{"name": "EXTRA", "value": "x"}], provideClusterInfo=True
    )
    access = ClusterConfig(server="x", credentials=credentials)
    assert await headers(access) == {"Authorization": "Bearer token-1-x"}
    await clock.advance(89)
    assert await headers(access) == {"Authorization": "Bearer token-1-x"}
    await clock.advance(1)
    assert await headers(access) == {"Authorization": "Bearer token-2-x"}
    assert credentials.invalidate()
    assert await headers(access) == {"Authorization": "Bearer token-3-x"}
    info = json.loads((tmp_path / "info").read_text())
    assert info["apiVersion"] == "client.authentication.k8s.io/v1"
    assert info["spec"] == {"interactive": False, "cluster": {"server": "https://one:6443"}}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import sys\nprint('go away', file=sys.stderr)\nsys.exit(3)", "failed with exit code 3"),
        (f"print('{SECRET}')", "not an ExecCredential"),
        (
            'print(\'{"apiVersion": "x/v1", "kind": "ExecCredential", "status": {"token": "t"}}\')',
            "it has version x/v1",
        ),
        (
            'print(\'{"apiVersion": "client.authentication.k8s.io/v1", '
            '"kind": "ExecCredential", "status": {}}\')',
            "neither a token nor",
        ),
    ],
)
async def test_errors_of_a_credential_plugin_do_not_contain_secrets(
    tmp_path: Path, clock: VirtualClock, body: str, message: str
) -> None:
    with pytest.raises(OutsideError, match=message) as caught:
        await plugin(program(tmp_path, body), clock).get_identity()
    assert SECRET not in f"{caught.value} {caught.value.details}"


async def test_the_stderr_of_a_credential_plugin_is_shown(
    tmp_path: Path, clock: VirtualClock
) -> None:
    body = "import sys\nprint('go away', file=sys.stderr)\nsys.exit(3)"
    with pytest.raises(OutsideError) as caught:
        await plugin(program(tmp_path, body), clock).get_identity()
    assert "go away" in caught.value.details


async def test_a_missing_credential_plugin_shows_its_install_hint(clock: VirtualClock) -> None:
    with pytest.raises(MachineError, match="not found") as caught:
        await plugin("/no/such/program", clock, installHint="install it").get_identity()
    assert caught.value.hint == "install it"


@pytest.mark.parametrize(
    "fields", [{"interactiveMode": "Always"}, {"apiVersion": "client.authentication.k8s.io/v9"}]
)
def test_a_program_that_cannot_be_served_is_refused(
    clock: VirtualClock, fields: dict[str, str]
) -> None:
    with pytest.raises(UsageError):
        plugin("x", clock, **fields)


async def test_a_relative_plugin_path_is_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    program(tmp_path, ANSWER.replace("**STATUS", ""))
    user = {"exec": {"command": "./plugin", "apiVersion": "client.authentication.k8s.io/v1"}}
    access = load_kubeconfig([config(tmp_path / "config", user)])
    assert await headers(access) == {"Authorization": "Bearer token-1-"}


def test_secrets_are_in_no_repr(tmp_path: Path) -> None:
    user = {"token": SECRET, "password": SECRET, "client-key-data": encode_base64(SECRET)}
    access = load_kubeconfig([config(tmp_path / "config", user)])
    assert SECRET not in repr(access)
