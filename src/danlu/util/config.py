"""The user's configuration: ``config.toml``, ``DANLU_*`` variables, and flags."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from danlu.errors import UsageError
from danlu.util.decoding import convert_value
from danlu.util.human import parse_duration, parse_size
from danlu.util.suggest import did_you_mean


class MirrorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A distribution's package mirrors, ``[mirrors.debian]``.

    ``urls`` are archive roots, tried in order; ``security`` those of the security archive (if
    empty, the same); ``keyring`` is a file with OpenPGP public keys.
    """

    urls: tuple[str, ...] = ()
    security: tuple[str, ...] = ()
    keyring: str = ""
    components: tuple[str, ...] = ("main",)


class RegistryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to reach a registry, ``[registries."localhost:5000"]``."""

    insecure: bool = False
    mirror: str = ""
    ca: str = ""
    create_repository: bool = False


class KubernetesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where ``--on kubernetes`` runs jobs and environments, and ``--builder kubernetes`` steps:
    ``[kubernetes]``.

    ``context`` is a context of the kubeconfig (empty: the current one) and ``namespace`` the jobs'
    namespace (empty: the context's). ``registry`` is where images of environments are pushed
    (``registry.example.org/team``), ``image_pull_secret`` the name of the Secret with which nodes
    pull them. ``checkpoint_claim`` is the PersistentVolumeClaim for checkpoints of jobs, writable
    from all their nodes. ``trust_results`` allows unpickling what jobs there return (SECURITY.md).
    ``builder_image`` is the image of the pod with buildkitd, rootless or with
    ``builder_privileged``; it is kept until it was idle for ``builder_idle`` (``"10m"``; empty: it
    is deleted after the build).
    Environments get volumes of ``storage_class`` (empty: the cluster's default class; ``none``: no
    volumes) with ``volume_size``, on nodes with the labels of ``node_selector`` and in spite of the
    taints of ``tolerations``. `danlu up` waits for a pod for at most ``start_timeout`` (empty: no
    limit). A pod ends if no supervisor has been in touch for ``environment_idle``.
    """

    context: str = ""
    namespace: str = ""
    registry: str = ""
    image_pull_secret: str = ""
    checkpoint_claim: str = ""
    trust_results: bool = False
    builder_image: str = "docker.io/moby/buildkit:v0.24.0-rootless"
    builder_privileged: bool = False
    builder_idle: str = "10m"
    storage_class: str = ""
    volume_size: str = "10Gi"
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, str | int], ...] = ()
    start_timeout: str = "1h"
    environment_idle: str = "1h"


NetworkName = Literal["host", "private"]
"""Which network the containers of environments have."""

TRANSFER_LIMIT = 4_000_000_000
"""Default limit for the bytes sent with a job, and for those each replica returns."""


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a user can set once for all projects.

    ``buildkit_tls_dir`` is a directory with the certificates for BuildKit at a ``tcp://`` address
    (``ca.pem``, ``cert.pem``, ``key.pem``). ``network`` is whether environments have the
    machine's network (``host``) or one of which only forwarded ports are reached (``private``).
    ``jobs`` is the number of build steps that run at once (0: one per core), ``store_limit`` the
    size limit of the store and its downloads (``"50GB"``; empty: no limit), ``runtime`` the OCI
    runtime's name or path (empty: the first one found), ``seccomp`` the system call filter
    (``default``, ``unconfined``, or the absolute path of a profile), ``upkeep`` whether bytecode is
    compiled and the store maintained in the background after a build. ``transfer_limit`` limits
    what is sent with a cell or a function, and what each replica returns (``"10GB"``).
    ``trust_results`` allows unpickling results of images that were not built here (SECURITY.md).
    Finished jobs older than ``jobs_max_age`` (``"30d"``) are removed, and the oldest ones while all
    together exceed ``jobs_limit`` (``"10GB"``); empty means no limit. ``ssh_config`` is the file in
    which `danlu up` includes the hosts of environments (``off``: none). ``cdi_spec_dirs`` are the
    directories with CDI specs, separated by colons; ``gpu_driver_root`` is the directory in which
    the NVIDIA driver is installed, such as ``/run/nvidia/driver`` for a driver container.
    """

    mirrors: dict[str, MirrorConfig] = {}
    registries: dict[str, RegistryConfig] = {}
    kubernetes: KubernetesConfig = KubernetesConfig()
    builder: str = "embedded"
    buildkit_tls_dir: str = ""
    network: NetworkName = "host"
    runtime: str = ""
    jobs: int = 0
    store_limit: str = ""
    seccomp: str = ""
    jobs_max_age: str = "30d"
    jobs_limit: str = "10GB"
    upkeep: Literal["background", "off"] = "background"
    transfer_limit: str = "4GB"
    trust_results: bool = False
    ssh_config: str = "~/.ssh/config"
    cdi_spec_dirs: str = "/etc/cdi:/var/run/cdi"
    gpu_driver_root: str = "/"

    @property
    def transfer_bytes(self) -> int:
        """``transfer_limit`` in bytes."""
        return parse_size(self.transfer_limit)


#: Settings that a variable (``DANLU_JOBS``) or a flag can override.
_OVERRIDABLE_SETTINGS = (
    "builder",
    "buildkit_tls_dir",
    "network",
    "runtime",
    "jobs",
    "store_limit",
    "seccomp",
    "upkeep",
    "transfer_limit",
    "trust_results",
    "jobs_max_age",
    "jobs_limit",
    "ssh_config",
    "cdi_spec_dirs",
    "gpu_driver_root",
)

_HINT = "run `danlu config` to see all settings"


def load_configuration(
    path: Path,
    environ: Mapping[str, str] | None = None,
    *,
    flags: Mapping[str, str | int | None] | None = None,
) -> Configuration:
    """Return the configuration of ``path``, overridden by ``environ``, overridden by ``flags``.

    A missing file or empty variable counts as unset; a flag that is None was not given. Variables
    are named after the fields (``DANLU_STORE_LIMIT``; ``DANLU_KUBERNETES_CONTEXT`` for that table);
    flags have the fields' names. Raises :class:`UsageError` naming the file, variable or flag that
    is invalid.
    """
    env = os.environ if environ is None else environ
    merged = _read_file(path)
    for name in _OVERRIDABLE_SETTINGS:
        variable = f"DANLU_{name.upper()}"
        if text := env.get(variable):
            merged = _override_setting(merged, name, text, source=variable)
    cluster = {
        name: text
        for name in KubernetesConfig.__struct_fields__
        if (text := env.get(f"DANLU_KUBERNETES_{name.upper()}"))
    }
    if cluster:
        merged = _override_kubernetes(merged, cluster)
    for name, value in (flags or {}).items():
        if value is not None:
            merged = _override_setting(merged, name, value, source="--" + name.replace("_", "-"))
    return merged


def _read_file(path: Path) -> Configuration:
    try:
        read = msgspec.toml.decode(path.read_bytes(), type=Configuration)
    except FileNotFoundError:
        return Configuration()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"{path}: {error}", hint=_suggest_setting(str(error)) or _HINT) from error
    _validate_settings(read, source=str(path))
    return read


def _override_setting(
    config: Configuration, name: str, value: str | int, *, source: str
) -> Configuration:
    if name not in _OVERRIDABLE_SETTINGS:
        raise TypeError(f"not a setting: {name}")
    try:
        fields = {**msgspec.structs.asdict(config), name: value}
        # Not strict: variables and flags are text even if the field is a number.
        changed = convert_value(fields, Configuration, strict=False)
    except msgspec.ValidationError as error:
        reason = str(error).partition(" - at ")[0]
        raise UsageError(f"{source}={value}: {reason}", hint=_HINT) from error
    _validate_settings(changed, source=source)
    return changed


def _override_kubernetes(config: Configuration, texts: Mapping[str, str]) -> Configuration:
    """Return ``config`` with fields of its ``kubernetes`` table replaced by variables."""
    try:
        fields = {**msgspec.structs.asdict(config.kubernetes), **texts}
        changed = convert_value(fields, KubernetesConfig, strict=False)
    except msgspec.ValidationError as error:
        reason = str(error).partition(" - at ")[0]
        names = ", ".join(f"DANLU_KUBERNETES_{name.upper()}" for name in texts)
        raise UsageError(f"{names}: {reason}", hint=_HINT) from error
    replaced = msgspec.structs.replace(config, kubernetes=changed)
    _validate_settings(
        replaced, source=", ".join(f"DANLU_KUBERNETES_{name.upper()}" for name in texts)
    )
    return replaced


def _validate_settings(config: Configuration, *, source: str) -> None:
    if config.jobs < 0:
        raise UsageError(f"{source}: jobs must be 0 (one per core) or more")
    for name in ("store_limit", "jobs_limit", "transfer_limit"):
        text = getattr(config, name)
        try:
            # Empty means no limit, except for transfers, which always have one.
            parse_size(text or "1" * (name != "transfer_limit"))
        except ValueError as error:
            raise UsageError(f"{source}: {name}: {error}") from error
    durations = {
        "jobs_max_age": config.jobs_max_age,
        "kubernetes.builder_idle": config.kubernetes.builder_idle,
        "kubernetes.start_timeout": config.kubernetes.start_timeout,
        "kubernetes.environment_idle": config.kubernetes.environment_idle,
    }
    for name, text in durations.items():
        try:
            parse_duration(text or "1")
        except ValueError as error:
            raise UsageError(f"{source}: {name}: {error}") from error
    # Must be absolute because a job's supervisor has another working directory.
    if not config.gpu_driver_root.startswith("/"):
        raise UsageError(f"{source}: gpu_driver_root must be an absolute path")
    if any(path[0] != "/" for path in config.cdi_spec_dirs.split(":") if path):
        raise UsageError(f"{source}: cdi_spec_dirs must be absolute paths, separated by colons")
    if config.seccomp not in ("", "default", "unconfined") and config.seccomp[0] not in "/~":
        raise UsageError(
            f"{source}: invalid seccomp profile {config.seccomp!r}",
            hint="set `default`, `unconfined`, or the absolute path of a profile",
        )


def _suggest_setting(message: str) -> str:
    """Return a hint with the closest existing setting if ``message`` is about an unknown one."""
    match = re.search(r"unknown field `([^`]*)`(?: - at `\$\.(\w+))?", message)
    if match is None:
        return ""
    if match[1] == "engine":  # a setting of earlier versions
        return "choose where environments run with `danlu context use NAME`, and remove the setting"
    tables = {"mirrors": MirrorConfig, "registries": RegistryConfig, "kubernetes": KubernetesConfig}
    known = tables.get(match[2] or "", Configuration).__struct_fields__
    return did_you_mean(match[1], known, template="`{}`", otherwise=f"settings: {', '.join(known)}")
