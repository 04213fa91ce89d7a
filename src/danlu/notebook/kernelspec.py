"""Kernelspecs: how Jupyter finds the kernel and starts it, with this Python.

A kernelspec is a directory ``BASE/kernels/NAME`` with ``kernel.json`` and logos (jupyter_client,
"Kernel specs"). Where the bases are is asked of jupyter_core.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from danlu.errors import DanluError, MachineError, UsageError
from danlu.util.files import write_atomic

__all__ = [
    "NAME",
    "Kernelspec",
    "bases",
    "below",
    "check_extra",
    "description",
    "install",
    "installed",
    "uninstall",
    "user_base",
]

#: The name it has where no other is asked for.
NAME = "danlu"

_MODULE = "danlu.notebook.kernel"

#: jupyter_client.kernelspec: ASCII letters and digits, ``.``, ``-`` and ``_``; small letters.
_NAME = re.compile(r"[a-z0-9._-]+")


class Kernelspec(msgspec.Struct, frozen=True):
    """One of danlu's kernels as it is installed.

    ``python`` is the interpreter it starts, ``ready`` whether that is still there.
    """

    name: str
    display_name: str
    directory: Path
    python: str
    ready: bool


def check_extra() -> None:
    """Raise :class:`MachineError` where what the kernel stands on is not installed."""
    missing = [one for one in ("ipykernel", "cloudpickle") if find_spec(one) is None]
    if missing:
        raise MachineError(
            f"the kernel needs {' and '.join(missing)}, not installed beside danlu",
            hint="pip install 'danlu[notebook]'",
        )


def description(display_name: str, *, python: str = sys.executable) -> dict[str, Any]:
    """``kernel.json``: as ipykernel's own, which starts the interpreter for its debugger."""
    # Frozen modules have no lines for debugpy to stop at, and it warns of them.
    return {
        "argv": [python, "-Xfrozen_modules=off", "-m", _MODULE, "-f", "{connection_file}"],
        "display_name": display_name,
        "language": "python",
        "interrupt_mode": "signal",
        "kernel_protocol_version": "5.5",
        "metadata": {"debugger": True, "supported_encryption": ["curve"]},
    }


def user_base() -> Path:
    """Where the user's own kernels are, for whichever Jupyter the user starts."""
    from jupyter_core.paths import jupyter_data_dir

    return Path(jupyter_data_dir())


def below(prefix: Path) -> Path:
    """Where kernels are in the environment ``prefix``."""
    return prefix.absolute() / "share" / "jupyter"


def bases() -> tuple[Path, ...]:
    """Everywhere that this Python's Jupyter looks, the nearest first."""
    from jupyter_core.paths import jupyter_path

    return tuple(dict.fromkeys(Path(one) for one in jupyter_path()))


def install(base: Path, name: str = NAME, *, display_name: str = "", replace: bool = False) -> Path:
    """Install the kernel as ``name`` below ``base`` and give its directory; danlu's own is renewed.

    Raises :class:`UsageError` for what can be no name and, unless ``replace``, where another
    program's kernel has it; :class:`MachineError` where it may not be written.
    """
    name = _checked(name)
    place = base / "kernels" / name
    if place.exists() and not replace and _read(place) is None:
        raise UsageError(
            f"{place} is a kernel of another program",
            hint="--replace puts danlu's in its place; --name gives danlu's another name",
        )
    shown = display_name or (NAME if name == NAME else f"{name} (danlu)")
    try:
        _write(place, json.dumps(description(shown), indent=1) + "\n")
    except OSError as error:
        raise MachineError(
            f"{place} cannot be written: {error.strerror}",
            hint="`danlu kernel install --user` needs no rights but your own",
        ) from error
    return place


def _checked(name: str) -> str:
    small = name.lower()
    if not _NAME.fullmatch(small):
        raise UsageError(
            f"{name!r} can be no kernel's name",
            hint="letters, digits, `.`, `-` and `_`; --display-name may be any text",
        )
    return small


def _write(place: Path, text: str) -> None:
    if place.exists():
        shutil.rmtree(place)
    for logo in files("danlu.notebook").joinpath("logos").iterdir():
        write_atomic(place / logo.name, logo.read_bytes())
    # Last: a directory without it is no kernel.
    write_atomic(place / "kernel.json", text.encode())


def installed(where: Sequence[Path]) -> tuple[Kernelspec, ...]:
    """The kernels of danlu below ``where``, also those that another of the same name hides."""
    places = [place for base in where for place in sorted((base / "kernels").glob("*"))]
    return tuple(one for one in map(_read, places) if one is not None)


def _read(place: Path) -> Kernelspec | None:
    """The kernel of danlu that is in ``place``, if it is one."""
    try:
        told = json.loads((place / "kernel.json").read_bytes())
        argv = [str(one) for one in told["argv"]]
        shown = str(told["display_name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if _MODULE not in argv:
        return None
    ready = shutil.which(argv[0]) is not None
    return Kernelspec(place.name, shown, place, argv[0], ready)


def uninstall(where: Sequence[Path], name: str = NAME) -> Path:
    """Remove the first kernel of danlu called ``name`` below ``where`` and give its directory.

    Raises :class:`UsageError` where there is none, :class:`MachineError` where it may not be.
    """
    found = installed(where)
    place = next((one.directory for one in found if one.name == name.lower()), None)
    if place is None:
        raise _unknown(name, where, [one.name for one in found])
    try:
        shutil.rmtree(place)
    except OSError as error:
        raise MachineError(
            f"{place} cannot be removed: {error.strerror}",
            hint="it may belong to another user or to the system",
        ) from error
    return place


def _unknown(name: str, where: Sequence[Path], names: Sequence[str]) -> DanluError:
    if any((base / "kernels" / name.lower()).is_dir() for base in where):
        return UsageError(
            f"the kernel {name} is not danlu's", hint=f"`jupyter kernelspec remove {name}`"
        )
    near = get_close_matches(name, names, 1)
    instead = f"did you mean {near[0]}? " if near else ""
    return UsageError(
        f"there is no kernel of danlu called {name}", hint=f"{instead}`danlu kernel ls` lists them"
    )
