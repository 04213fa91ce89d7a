"""Install, list and remove kernelspecs, which tell Jupyter how to start the kernel.

A kernelspec is a directory ``BASE/kernels/NAME`` with ``kernel.json`` and logos (jupyter_client,
"Kernel specs"). jupyter_core knows the base directories.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from danlu.errors import DanluError, MachineError, UsageError
from danlu.util.files import write_atomic
from danlu.util.suggest import did_you_mean

DEFAULT_NAME = "danlu"

_MODULE = "danlu.notebook.kernel"

#: The names that jupyter_client.kernelspec accepts, in lower case.
_VALID_NAME = re.compile(r"[a-z0-9._-]+")


class Kernelspec(msgspec.Struct, frozen=True):
    """An installed kernel of danlu; ``ready`` is whether its interpreter ``python`` exists."""

    name: str
    display_name: str
    directory: Path
    python: str
    ready: bool


def check_requirements() -> None:
    """Raise :class:`MachineError` if a package that the kernel requires is missing."""
    missing = [name for name in ("ipykernel", "cloudpickle") if find_spec(name) is None]
    if missing:
        raise MachineError(
            f"the danlu kernel requires {' and '.join(missing)}",
            hint=f"`uv pip install --python {sys.executable} {' '.join(missing)}`",
        )


def kernel_json(display_name: str, *, python: str = sys.executable) -> dict[str, Any]:
    """Return the content of ``kernel.json``, equivalent to ipykernel's own."""
    # Frozen modules have no source lines to set breakpoints on, and debugpy warns about them.
    return {
        "argv": [python, "-Xfrozen_modules=off", "-m", _MODULE, "-f", "{connection_file}"],
        "display_name": display_name,
        "language": "python",
        "interrupt_mode": "signal",
        "kernel_protocol_version": "5.5",
        "metadata": {"debugger": True, "supported_encryption": ["curve"]},
    }


def user_base() -> Path:
    """Return the base directory of the user's kernels, which every Jupyter of the user reads."""
    # Imported late: jupyter_core is an optional dependency, of danlu[notebook].
    from jupyter_core.paths import jupyter_data_dir

    return Path(jupyter_data_dir())


def environment_base(prefix: Path) -> Path:
    """Return the base directory of the kernels in the environment ``prefix``."""
    return prefix.absolute() / "share" / "jupyter"


def search_bases() -> tuple[Path, ...]:
    """Return all base directories that this Python's Jupyter searches, in order of precedence."""
    # Imported late: see user_base.
    from jupyter_core.paths import jupyter_path

    return tuple(dict.fromkeys(Path(base) for base in jupyter_path()))


def install_kernel(
    base: Path, name: str = DEFAULT_NAME, *, display_name: str = "", replace: bool = False
) -> Path:
    """Install or update the kernel ``name`` in ``base`` and return its directory.

    Raises :class:`UsageError` for an invalid name and, unless ``replace``, if a kernel of another
    program has it; :class:`MachineError` if the directory is not writable.
    """
    name = _normalize_name(name)
    directory = base / "kernels" / name
    if directory.exists() and not replace and _read_kernelspec(directory) is None:
        raise UsageError(
            f"{directory} is a kernel of another program",
            hint="overwrite it with --replace, or choose another name with --name",
        )
    shown = display_name or (DEFAULT_NAME if name == DEFAULT_NAME else f"{name} (danlu)")
    try:
        _write_kernelspec(directory, json.dumps(kernel_json(shown), indent=1) + "\n")
    except OSError as error:
        raise MachineError(
            f"cannot write {directory}: {error.strerror}",
            hint="`danlu kernel install --user` installs into your home directory",
        ) from error
    return directory


def _normalize_name(name: str) -> str:
    normalized = name.lower()
    if not _VALID_NAME.fullmatch(normalized):
        raise UsageError(
            f"invalid kernel name {name!r}",
            hint="use letters, digits, `.`, `-` and `_`; --display-name may be any text",
        )
    return normalized


def _write_kernelspec(directory: Path, text: str) -> None:
    if directory.exists():
        shutil.rmtree(directory)
    for logo in files("danlu.notebook").joinpath("logos").iterdir():
        write_atomic(directory / logo.name, logo.read_bytes())
    # Last: Jupyter ignores directories without kernel.json, so no half-written kernel is listed.
    write_atomic(directory / "kernel.json", text.encode())


def list_kernels(bases: Sequence[Path]) -> tuple[Kernelspec, ...]:
    """Return danlu's kernels in ``bases``, including those shadowed by another of the same name."""
    directories = [path for base in bases for path in sorted((base / "kernels").glob("*"))]
    return tuple(kernel for kernel in map(_read_kernelspec, directories) if kernel is not None)


def _read_kernelspec(directory: Path) -> Kernelspec | None:
    """Return the kernel in ``directory`` if it is one of danlu's."""
    try:
        spec = json.loads((directory / "kernel.json").read_bytes())
        argv = [str(word) for word in spec["argv"]]
        display_name = str(spec["display_name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if _MODULE not in argv:
        return None
    ready = shutil.which(argv[0]) is not None
    return Kernelspec(directory.name, display_name, directory, argv[0], ready)


def uninstall_kernel(bases: Sequence[Path], name: str = DEFAULT_NAME) -> Path:
    """Remove danlu's first kernel called ``name`` in ``bases`` and return its directory.

    Raises :class:`UsageError` if there is none, :class:`MachineError` if it cannot be removed.
    """
    kernels = list_kernels(bases)
    directory = next((kernel.directory for kernel in kernels if kernel.name == name.lower()), None)
    if directory is None:
        raise _not_found(name, bases, [kernel.name for kernel in kernels])
    try:
        shutil.rmtree(directory)
    except OSError as error:
        raise MachineError(
            f"cannot remove {directory}: {error.strerror}",
            hint="it may belong to another user",
        ) from error
    return directory


def _not_found(name: str, bases: Sequence[Path], names: Sequence[str]) -> DanluError:
    if any((base / "kernels" / name.lower()).is_dir() for base in bases):
        return UsageError(
            f"kernel {name} was not installed by danlu",
            hint=f"remove it with `jupyter kernelspec remove {name}`",
        )
    return UsageError(
        f"kernel {name} not found",
        hint=did_you_mean(name, names, otherwise="`danlu kernel ls` lists danlu's kernels"),
    )
