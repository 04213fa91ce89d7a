"""Kubeconfigs and service accounts: which server, and as whom.

As client-go reads them (tools/clientcmd): several files are one, of which the first to say a thing
has the word; paths in a file are relative to it.
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

from danlu.errors import UsageError
from danlu.kube.access import Access, Credentials
from danlu.kube.credentials import Stated
from danlu.kube.execplugin import ExecPlugin, ExecSpec

__all__ = ["from_kubeconfig", "in_cluster", "load_access"]

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class _Cluster(msgspec.Struct, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _User(msgspec.Struct, rename="kebab"):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    username: str = ""
    password: str = ""
    exec: ExecSpec | None = None
    auth_provider: dict[str, object] | None = None
    impersonate: str = msgspec.field(default="", name="as")
    impersonate_groups: list[str] | None = msgspec.field(default=None, name="as-groups")


class _Context(msgspec.Struct):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: _Cluster


class _NamedUser(msgspec.Struct):
    name: str
    user: _User


class _NamedContext(msgspec.Struct):
    name: str
    context: _Context


class _File(msgspec.Struct, rename="kebab"):
    current_context: str = ""
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


class _Merged(msgspec.Struct):
    """All files as one; clusters and users know the directory their paths are relative to."""

    current: str = ""
    contexts: dict[str, _Context] = {}
    clusters: dict[str, tuple[_Cluster, Path]] = {}
    users: dict[str, tuple[_User, Path]] = {}


def load_access(
    *,
    kubeconfig: Path | None = None,
    context: str = "",
    environ: Mapping[str, str] = os.environ,
    service_account: Path = _SERVICE_ACCOUNT,
) -> Access:
    """The access that was asked for: this file, else ``KUBECONFIG``, else the pod's, else the
    home's ``.kube/config``.

    Raises :class:`UsageError` for a configuration that is missing, or says nothing usable.
    """
    if kubeconfig is not None:
        return from_kubeconfig([kubeconfig], context=context, environ=environ)
    if environ.get("KUBECONFIG"):
        paths = [Path(one) for one in environ["KUBECONFIG"].split(os.pathsep) if one]
        return from_kubeconfig(paths, context=context, environ=environ)
    if not context and environ.get("KUBERNETES_SERVICE_HOST") and service_account.is_dir():
        return in_cluster(environ=environ, service_account=service_account)
    home = Path(environ.get("HOME") or Path.home())
    return from_kubeconfig([home / ".kube" / "config"], context=context, environ=environ)


def in_cluster(
    *, environ: Mapping[str, str] = os.environ, service_account: Path = _SERVICE_ACCOUNT
) -> Access:
    """The access of a pod by its service account, whose token is read anew as it is rotated."""
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise UsageError("KUBERNETES_SERVICE_HOST is not set: this is no pod of a cluster")
    shown = f"[{host}]" if ":" in host else host
    namespace = service_account / "namespace"
    return Access(
        server=f"https://{shown}:{port}",
        credentials=Stated(token_file=service_account / "token"),
        ca=_read(service_account / "ca.crt"),
        namespace=_read(namespace).decode().strip() if namespace.exists() else "default",
    )


def from_kubeconfig(
    paths: Iterable[Path], *, context: str = "", environ: Mapping[str, str] = os.environ
) -> Access:
    """The access that a context of kubeconfig files says; the current one where none is named."""
    files = [path for path in paths if path.exists()]
    if not files:
        raise UsageError(
            "there is no kubeconfig",
            hint="--kubeconfig or KUBECONFIG names one; the usual place is ~/.kube/config",
        )
    merged = _merge(files)
    name = context or merged.current
    if not name:
        raise UsageError("the kubeconfig has no current context", hint=_known(merged.contexts))
    chosen = _named(merged.contexts, name, "context")
    cluster, place = _named(merged.clusters, chosen.cluster, "cluster")
    user, home = _named(merged.users, chosen.user, "user") if chosen.user else (_User(), place)
    if not cluster.server:
        raise UsageError(f"the cluster {chosen.cluster} of the kubeconfig has no server")
    if urlsplit(cluster.server).scheme not in ("http", "https"):
        raise UsageError(
            f"{cluster.server!r} of the kubeconfig is no server",
            hint="it is a URL that begins with https://",
        )
    if cluster.proxy_url.startswith("socks"):
        raise UsageError(f"{cluster.proxy_url}: a SOCKS proxy is not understood, use an HTTP one")
    ca = _pem(cluster.certificate_authority_data, cluster.certificate_authority, place)
    return Access(
        server=cluster.server.rstrip("/"),
        credentials=_credentials(user, home, cluster, _as_bytes(ca), environ),
        namespace=chosen.namespace or "default",
        ca=_as_bytes(ca),
        insecure=cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name,
        proxy=cluster.proxy_url,
    )


def _credentials(
    user: _User, place: Path, cluster: _Cluster, ca: bytes, environ: Mapping[str, str]
) -> Credentials:
    if user.exec is not None:
        return ExecPlugin(
            _from(place, user.exec), cluster=_cluster_info(cluster, ca), environ=environ
        )
    if user.auth_provider is not None:
        name = user.auth_provider.get("name", "")
        raise UsageError(
            f"auth-provider {name} of the kubeconfig has been taken out of Kubernetes",
            hint="its successor is an exec plug-in; the provider's own tool writes it",
        )
    return Stated(
        token=user.token,
        token_file=place / user.token_file if user.token_file else None,
        user=user.username,
        password=user.password,
        chain=_pem(user.client_certificate_data, user.client_certificate, place),
        key=_pem(user.client_key_data, user.client_key, place),
        headers=_impersonation(user),
    )


def _impersonation(user: _User) -> tuple[tuple[str, str], ...]:
    if not user.impersonate:
        return ()
    groups = tuple(("Impersonate-Group", one) for one in user.impersonate_groups or ())
    return (("Impersonate-User", user.impersonate), *groups)


def _from(place: Path, spec: ExecSpec) -> ExecSpec:
    if os.sep not in spec.command:
        return spec
    return msgspec.structs.replace(spec, command=str(place / spec.command))


def _cluster_info(cluster: _Cluster, ca: bytes) -> Mapping[str, object]:
    return {
        "server": cluster.server,
        "certificate-authority-data": base64.b64encode(ca).decode(),
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "tls-server-name": cluster.tls_server_name,
        "proxy-url": cluster.proxy_url,
    }


def _merge(paths: Iterable[Path]) -> _Merged:
    merged = _Merged()
    for path in paths:
        file, place = _parse(path), path.parent
        merged.current = merged.current or file.current_context
        for context in file.contexts or ():
            merged.contexts.setdefault(context.name, context.context)
        for cluster in file.clusters or ():
            merged.clusters.setdefault(cluster.name, (cluster.cluster, place))
        for user in file.users or ():
            merged.users.setdefault(user.name, (user.user, place))
    return merged


def _parse(path: Path) -> _File:
    import yaml

    try:
        data = yaml.safe_load(_read(path)) or {}
    except (yaml.YAMLError, UnicodeDecodeError):
        # Not the parser's reason, which quotes the file: it may quote a secret.
        raise UsageError(f"{path} is no YAML") from None
    try:
        return msgspec.convert(data, _File)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} is no kubeconfig: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _pem(data: str, file: str, place: Path) -> bytes | Path | None:
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise UsageError("a -data field of the kubeconfig is not base64") from None
    return place / file if file else None


def _as_bytes(source: bytes | Path | None) -> bytes:
    return _read(source) if isinstance(source, Path) else source or b""


_Named = TypeVar("_Named")


def _named(known: Mapping[str, _Named], name: str, what: str) -> _Named:
    try:
        return known[name]
    except KeyError:
        raise UsageError(f"the kubeconfig has no {what} {name!r}", hint=_known(known)) from None


def _known(names: Iterable[str]) -> str:
    shown = ", ".join(sorted(names))
    return f"it has {shown}" if shown else "it has none"
