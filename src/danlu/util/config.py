"""The user's configuration: ``config.toml``, then ``DANLU_*`` variables, then flags (D12)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from danlu.errors import UsageError
from danlu.util.human import parse_size

__all__ = ["Configuration", "Kubernetes", "Mirror", "RegistryAccess", "load_configuration"]


class Mirror(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a distribution's packages come from: ``[mirrors.debian]``.

    ``urls`` are archive roots tried in order, ``security`` those of the security archive (the
    same when empty); ``keyring`` a file of OpenPGP public keys.
    """

    urls: tuple[str, ...] = ()
    security: tuple[str, ...] = ()
    keyring: str = ""
    components: tuple[str, ...] = ("main",)


class RegistryAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one registry is reached: ``[registries."localhost:5000"]``."""

    insecure: bool = False
    mirror: str = ""
    ca: str = ""


class Kubernetes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where jobs go that run ``--on kubernetes``: ``[kubernetes]``.

    ``context`` is one of the kubeconfig (empty: its current one), ``namespace`` where jobs are
    (empty: the context's). ``registry`` is what images of environments are pushed to
    (``registry.example.org/team``), ``image_pull_secret`` a Secret of the namespace by which nodes
    pull them.
    """

    context: str = ""
    namespace: str = ""
    registry: str = ""
    image_pull_secret: str = ""


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a user can set once for all projects.

    ``jobs`` is how many steps run at once (0: as many as there are cores), ``store_limit`` how
    large the store and its downloads may grow (``"50GB"``; empty: without limit), ``runtime`` the
    OCI runtime's name or path (empty: the first one found), ``upkeep`` whether byte code is made
    and the store kept in shape in the background after a build.
    """

    mirrors: dict[str, Mirror] = {}
    registries: dict[str, RegistryAccess] = {}
    kubernetes: Kubernetes = Kubernetes()
    builder: str = "embedded"
    runtime: str = ""
    jobs: int = 0
    store_limit: str = ""
    upkeep: Literal["background", "off"] = "background"


#: What a variable (``DANLU_JOBS``) or a flag may set too.
_SIMPLE = ("builder", "runtime", "jobs", "store_limit", "upkeep")

_HINT = "see `danlu config` for what may be set"


def load_configuration(
    path: Path,
    environ: Mapping[str, str] | None = None,
    *,
    flags: Mapping[str, str | int | None] | None = None,
) -> Configuration:
    """The configuration of ``path`` under the variables of ``environ`` under ``flags`` (D12).

    An absent file is empty, and so is an empty variable; a flag that is None was not given.
    Variables are ``DANLU_BUILDER``, ``DANLU_RUNTIME``, ``DANLU_JOBS``, ``DANLU_STORE_LIMIT``,
    ``DANLU_UPKEEP``, and ``DANLU_KUBERNETES_CONTEXT`` and so on for each of that table; flags have
    the fields' names. Raises :class:`UsageError` naming the file, the variable or the flag that is
    wrong.
    """
    env = os.environ if environ is None else environ
    merged = _from_file(path)
    for name in _SIMPLE:
        variable = f"DANLU_{name.upper()}"
        if text := env.get(variable):
            merged = _with(merged, name, text, source=variable)
    cluster = {
        name: text
        for name in Kubernetes.__struct_fields__
        if (text := env.get(f"DANLU_KUBERNETES_{name.upper()}"))
    }
    if cluster:
        changed = msgspec.structs.replace(merged.kubernetes, **cluster)
        merged = msgspec.structs.replace(merged, kubernetes=changed)
    for name, value in (flags or {}).items():
        if value is not None:
            merged = _with(merged, name, value, source="--" + name.replace("_", "-"))
    return merged


def _from_file(path: Path) -> Configuration:
    try:
        read = msgspec.toml.decode(path.read_bytes(), type=Configuration)
    except FileNotFoundError:
        return Configuration()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"{path}: {error}", hint=_near(str(error)) or _HINT) from error
    _check(read, source=str(path))
    return read


def _with(config: Configuration, name: str, value: str | int, *, source: str) -> Configuration:
    if name not in _SIMPLE:
        raise TypeError(f"not a setting: {name}")
    try:
        fields = {**msgspec.structs.asdict(config), name: value}
        # Not strict: variables and flags are text, also where a number is meant.
        changed = msgspec.convert(fields, Configuration, strict=False)
    except msgspec.ValidationError as error:
        reason = str(error).partition(" - at ")[0]
        raise UsageError(f"{source}={value}: {reason}", hint=_HINT) from error
    _check(changed, source=source)
    return changed


def _check(config: Configuration, *, source: str) -> None:
    if config.jobs < 0:
        raise UsageError(f"{source}: jobs must be 0 (as many as there are cores) or more")
    if config.store_limit:
        try:
            parse_size(config.store_limit)
        except ValueError as error:
            raise UsageError(f"{source}: store_limit is {error}") from error


def _near(message: str) -> str:
    """The nearest name that exists, where ``message`` is about one that does not."""
    found = re.search(r"unknown field `([^`]*)`(?: - at `\$\.(\w+))?", message)
    if found is None:
        return ""
    import difflib

    tables = {"mirrors": Mirror, "registries": RegistryAccess, "kubernetes": Kubernetes}
    known = tables.get(found[2] or "", Configuration).__struct_fields__
    close = difflib.get_close_matches(found[1], known, n=1)
    return f"did you mean `{close[0]}`?" if close else f"there are: {', '.join(known)}"
