"""The user's configuration: ``config.toml``, then ``DANLU_*`` variables, then flags (D12)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from danlu.errors import UsageError

__all__ = ["Configuration", "Mirror", "RegistryAccess", "load_configuration"]


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


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a user can set once for all projects."""

    mirrors: dict[str, Mirror] = {}
    registries: dict[str, RegistryAccess] = {}
    builder: str = "embedded"
    runtime: str = ""
    jobs: int = 0
    store_limit: str = ""


_SIMPLE = {"builder": str, "runtime": str, "jobs": int, "store_limit": str}


def load_configuration(path: Path, environ: Mapping[str, str] | None = None) -> Configuration:
    """The configuration of ``path`` (an absent file is empty) under the variables of ``environ``.

    ``DANLU_BUILDER``, ``DANLU_RUNTIME``, ``DANLU_JOBS`` and ``DANLU_STORE_LIMIT`` win over the
    file. Raises :class:`UsageError` naming the file and the field where something is wrong.
    """
    env = os.environ if environ is None else environ
    try:
        values = msgspec.toml.decode(path.read_bytes()) if path.exists() else {}
        for name, kind in _SIMPLE.items():
            text = env.get(f"DANLU_{name.upper()}")
            if text is not None:
                values[name] = kind(text)
        return msgspec.convert(values, Configuration)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
        raise UsageError(
            f"{path}: {error}", hint="see `danlu config` for what may be set"
        ) from error
