"""Load the configuration of a cluster from kubeconfig files or a pod's service account.

The rules are those of client-go (tools/clientcmd): several files are merged, and the first to set a
value wins; relative paths are relative to the file that has them.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
import yaml

from danlu.errors import UsageError
from danlu.kube.config import ClusterConfig, Credentials, StaticCredentials
from danlu.kube.exec_plugin import ExecConfig, ExecPlugin
from danlu.util.decoding import convert_value

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class _ClusterEntry(msgspec.Struct, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _AuthInfo(msgspec.Struct, rename="kebab"):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    username: str = ""
    password: str = ""
    exec: ExecConfig | None = None
    auth_provider: dict[str, object] | None = None
    impersonate: str = msgspec.field(default="", name="as")
    impersonate_groups: list[str] | None = msgspec.field(default=None, name="as-groups")


class _ContextEntry(msgspec.Struct):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: _ClusterEntry


class _NamedUser(msgspec.Struct):
    name: str
    user: _AuthInfo


class _NamedContext(msgspec.Struct):
    name: str
    context: _ContextEntry


class _KubeconfigFile(msgspec.Struct, rename="kebab"):
    current_context: str = ""
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


class _MergedKubeconfig(msgspec.Struct):
    """All files merged; clusters and users come with the directory of their file."""

    current: str = ""
    contexts: dict[str, _ContextEntry] = {}
    clusters: dict[str, tuple[_ClusterEntry, Path]] = {}
    users: dict[str, tuple[_AuthInfo, Path]] = {}


def load_cluster_config(
    *,
    kubeconfig: Path | None = None,
    context: str = "",
    environ: Mapping[str, str] = os.environ,
    service_account: Path = _SERVICE_ACCOUNT,
) -> ClusterConfig:
    """Load the first that applies: ``kubeconfig``, ``$KUBECONFIG``, the pod's service account, or
    ``~/.kube/config``.

    Raises :class:`UsageError` if the configuration is missing or invalid.
    """
    if kubeconfig is not None:
        return load_kubeconfig([kubeconfig], context=context, environ=environ)
    if environ.get("KUBECONFIG"):
        paths = [Path(path) for path in environ["KUBECONFIG"].split(os.pathsep) if path]
        return load_kubeconfig(paths, context=context, environ=environ)
    if not context and environ.get("KUBERNETES_SERVICE_HOST") and service_account.is_dir():
        return load_in_cluster_config(environ=environ, service_account=service_account)
    home = Path(environ.get("HOME") or Path.home())
    return load_kubeconfig([home / ".kube" / "config"], context=context, environ=environ)


def load_in_cluster_config(
    *, environ: Mapping[str, str] = os.environ, service_account: Path = _SERVICE_ACCOUNT
) -> ClusterConfig:
    """Return the configuration of a pod's service account, whose token is read again on rotation.

    Raises :class:`UsageError` outside a cluster.
    """
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise UsageError("not running in a pod: KUBERNETES_SERVICE_HOST is not set")
    url_host = f"[{host}]" if ":" in host else host
    namespace = service_account / "namespace"
    return ClusterConfig(
        server=f"https://{url_host}:{port}",
        credentials=StaticCredentials(token_file=service_account / "token"),
        ca=_read_file(service_account / "ca.crt"),
        namespace=_read_file(namespace).decode().strip() if namespace.exists() else "default",
    )


def load_kubeconfig(
    paths: Iterable[Path], *, context: str = "", environ: Mapping[str, str] = os.environ
) -> ClusterConfig:
    """Return the configuration of a context; of the current context if none is named.

    Raises :class:`UsageError` if the files or the context are missing or invalid.
    """
    files = [path for path in paths if path.exists()]
    if not files:
        raise UsageError(
            "no kubeconfig found",
            hint="pass --kubeconfig, set KUBECONFIG, or create ~/.kube/config",
        )
    merged = _merge_files(files)
    name = context or merged.current
    if not name:
        raise UsageError("the kubeconfig has no current context", hint=_list_names(merged.contexts))
    entry = _lookup_entry(merged.contexts, name, "context")
    cluster, directory = _lookup_entry(merged.clusters, entry.cluster, "cluster")
    user, user_directory = (
        _lookup_entry(merged.users, entry.user, "user") if entry.user else (_AuthInfo(), directory)
    )
    if not cluster.server:
        raise UsageError(f"kubeconfig: cluster {entry.cluster} has no server")
    if urlsplit(cluster.server).scheme not in ("http", "https"):
        raise UsageError(
            f"kubeconfig: invalid server {cluster.server!r}",
            hint="it must be a URL that begins with https://",
        )
    if cluster.proxy_url.startswith("socks"):
        raise UsageError(
            f"kubeconfig: SOCKS proxies are not supported: {cluster.proxy_url}",
            hint="use an HTTP proxy",
        )
    ca = _load_pem(cluster.certificate_authority_data, cluster.certificate_authority, directory)
    ca_bytes = _read_file(ca) if isinstance(ca, Path) else ca or b""
    return ClusterConfig(
        server=cluster.server.rstrip("/"),
        credentials=_build_credentials(user, user_directory, cluster, ca_bytes, environ),
        namespace=entry.namespace or "default",
        ca=ca_bytes,
        insecure=cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name,
        proxy=cluster.proxy_url,
    )


def read_current_context(*, environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of the kubeconfig's current context; empty without one (in a pod)."""
    home = Path(environ.get("HOME") or Path.home())
    texts = environ.get("KUBECONFIG", "").split(os.pathsep)
    paths = [Path(text) for text in texts if text] or [home / ".kube" / "config"]
    return _merge_files([path for path in paths if path.exists()]).current


def _build_credentials(
    user: _AuthInfo,
    directory: Path,
    cluster: _ClusterEntry,
    ca: bytes,
    environ: Mapping[str, str],
) -> Credentials:
    if user.exec is not None:
        config = user.exec
        if os.sep in config.command:
            config = msgspec.structs.replace(config, command=str(directory / config.command))
        return ExecPlugin(config, cluster=_cluster_info(cluster, ca), environ=environ)
    if user.auth_provider is not None:
        name = user.auth_provider.get("name", "")
        raise UsageError(
            f"kubeconfig: auth-provider {name} was removed from Kubernetes",
            hint="use an exec plugin instead; the provider's own tool writes its configuration",
        )
    return StaticCredentials(
        token=user.token,
        token_file=directory / user.token_file if user.token_file else None,
        user=user.username,
        password=user.password,
        chain=_load_pem(user.client_certificate_data, user.client_certificate, directory),
        key=_load_pem(user.client_key_data, user.client_key, directory),
        headers=_impersonation_headers(user),
    )


def _impersonation_headers(user: _AuthInfo) -> tuple[tuple[str, str], ...]:
    if not user.impersonate:
        return ()
    groups = tuple(("Impersonate-Group", group) for group in user.impersonate_groups or ())
    return (("Impersonate-User", user.impersonate), *groups)


def _cluster_info(cluster: _ClusterEntry, ca: bytes) -> Mapping[str, object]:
    return {
        "server": cluster.server,
        "certificate-authority-data": base64.b64encode(ca).decode(),
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "tls-server-name": cluster.tls_server_name,
        "proxy-url": cluster.proxy_url,
    }


def _merge_files(paths: Iterable[Path]) -> _MergedKubeconfig:
    merged = _MergedKubeconfig()
    for path in paths:
        file, directory = _parse_file(path), path.parent
        merged.current = merged.current or file.current_context
        for context in file.contexts or ():
            merged.contexts.setdefault(context.name, context.context)
        for cluster in file.clusters or ():
            merged.clusters.setdefault(cluster.name, (cluster.cluster, directory))
        for user in file.users or ():
            merged.users.setdefault(user.name, (user.user, directory))
    return merged


def _parse_file(path: Path) -> _KubeconfigFile:
    try:
        data = yaml.safe_load(_read_file(path)) or {}
    except (yaml.YAMLError, UnicodeDecodeError):
        # Without the parser's message, which quotes the file and could contain a secret.
        raise UsageError(f"{path}: invalid YAML") from None
    try:
        return convert_value(data, _KubeconfigFile)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: invalid kubeconfig: {error}") from error


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _load_pem(data: str, file: str, directory: Path) -> bytes | Path | None:
    """Return the PEM of a ``-data`` field, or the path in the field without ``-data``."""
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise UsageError("kubeconfig: a -data field is not valid base64") from None
    return directory / file if file else None


_Entry = TypeVar("_Entry")


def _lookup_entry(entries: Mapping[str, _Entry], name: str, what: str) -> _Entry:
    try:
        return entries[name]
    except KeyError:
        raise UsageError(
            f"kubeconfig: {what} {name!r} not found", hint=_list_names(entries)
        ) from None


def _list_names(names: Mapping[str, object]) -> str:
    return f"it has: {', '.join(sorted(names))}" if names else "it has none"
