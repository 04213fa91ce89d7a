"""``danlu doctor``: what this machine has and lacks for building and running environments."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from danlu.errors import DanluError

if TYPE_CHECKING:
    from danlu.util.paths import Paths

__all__ = ["Check", "examine"]

#: Less free space than this is too little for a first environment.
_ENOUGH = 5 << 30


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at; ``fix`` says what to do where it is not ``ok``."""

    name: str
    ok: bool
    detail: str = ""
    fix: str = ""


def examine(paths: Paths) -> tuple[Check, ...]:
    """Everything danlu stands on, looked at without changing anything.

    A check that itself fails counts as not ok.
    """
    checks: dict[str, Callable[[Paths], Iterator[Check]]] = {
        "configuration": _configuration,
        "directories": _directories,
        "uv": _uv,
        "sandbox": _sandbox,
        "store": _store,
    }
    found: list[Check] = []
    for name, check in checks.items():
        try:
            found += check(paths)
        except DanluError as error:
            found.append(Check(name, False, error.message, error.hint))
        except Exception as error:
            found.append(Check(name, False, f"{type(error).__name__}: {error}"))
    return tuple(found)


def _configuration(paths: Paths) -> Iterator[Check]:
    from danlu.util.config import load_configuration

    load_configuration(paths.config_file)
    detail = str(paths.config_file) if paths.config_file.exists() else "no file; all is default"
    yield Check("configuration", True, detail)


def _directories(paths: Paths) -> Iterator[Check]:
    for name, path in (("data", paths.data), ("state", paths.state)):
        place = next(one for one in (path, *path.parents) if one.exists())
        writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
        fix = "" if writable else f"make {place} writable, or set DANLU_HOME to another directory"
        yield Check(f"{name} directory", writable, str(path), fix)
        if name == "data":
            yield _space(place)


def _space(place: Path) -> Check:
    free = shutil.disk_usage(place).free
    detail = f"{free / 1e9:.1f} GB free at {place}"
    fix = "" if free >= _ENOUGH else "`danlu image prune` makes room; DANLU_HOME moves the store"
    return Check("disk space", free >= _ENOUGH, detail, fix)


def _uv(paths: Paths) -> Iterator[Check]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        yield Check("uv", True, version("uv"))
    except PackageNotFoundError:
        yield Check("uv", False, "not installed beside danlu", "pip install --upgrade danlu")


def _sandbox(paths: Paths) -> Iterator[Check]:
    from danlu.sandbox import doctor

    for name, ok, detail, fix in doctor.check(paths):
        yield Check(name, ok, detail, fix)


def _store(paths: Paths) -> Iterator[Check]:
    if not paths.store.is_dir():
        yield Check("store", True, "not made yet")
        return
    from danlu.store import Store

    with Store.open(paths.store) as store:
        total = store.usage().total
        yield Check("store", True, f"{len(store.images())} images, {total / 1e9:.1f} GB")
