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
from danlu.util.danlu_program import danlu_program, directory_variables
from danlu.util.files import write_atomic
from danlu.util.suggest import did_you_mean

DEFAULT_NAME = "danlu"

_MODULE = "danlu.notebook.kernel"
_ENVIRONMENT_KEY = "danlu_environment"

#: The names that jupyter_client.kernelspec accepts, in lower case.
_VALID_NAME = re.compile(r"[a-z0-9._-]+")


class Kernelspec(msgspec.Struct, frozen=True):
    """An installed kernel of danlu; ``ready`` is whether its interpreter ``python`` exists.

    ``environment`` is the environment in which the kernel runs; empty for the notebook's kernel.
    """

    name: str
    display_name: str
    directory: Path
    python: str
    ready: bool
    environment: str = ""


def check_requirements(names: Sequence[str] = ("ipykernel", "cloudpickle")) -> None:
    """Raise :class:`MachineError` if a package that the kernel requires is missing."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise MachineError(
            f"the danlu kernel requires {' and '.join(missing)}",
            hint=f"`uv pip install --python {sys.executable} {' '.join(missing)}`",
        )


def kernel_json(display_name: str, *, python: str = sys.executable) -> dict[str, Any]:
    """Return the content of the notebook kernel's ``kernel.json``, equivalent to ipykernel's."""
    # Frozen modules have no source lines to set breakpoints on, and debugpy warns about them.
    return {
        "argv": [python, "-Xfrozen_modules=off", "-m", _MODULE, "-f", "{connection_file}"],
        "display_name": display_name,
        "language": "python",
        "interrupt_mode": "signal",
        "kernel_protocol_version": "5.5",
        "metadata": {"debugger": True, "supported_encryption": ["curve"]},
    }


def environment_kernel_json(display_name: str, environment: str) -> dict[str, Any]:
    """Return the content of ``kernel.json`` for a kernel inside an environment."""
    return {
        "argv": [*danlu_program(), "kernel", "run", "--env", environment, "{connection_file}"],
        "display_name": display_name,
        "language": "python",
        # The kernel interrupts its process group then, so that its children are interrupted, too.
        "interrupt_mode": "message",
        "kernel_protocol_version": "5.5",
        "env": directory_variables(),
        "metadata": {"debugger": True, _ENVIRONMENT_KEY: environment},
    }


def user_base() -> Path:
    """Return the base directory of the user's kernels, which every Jupyter of the user reads."""
    # Imported late: jupyter_core is an optional dependency, of danlu's extra `notebook`.
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
    base: Path,
    name: str = DEFAULT_NAME,
    *,
    display_name: str = "",
    replace: bool = False,
    environment: str = "",
) -> Path:
    """Install or update the kernel ``name`` in ``base`` and return its directory.

    It runs in ``environment`` if that is given. Raises :class:`UsageError` for an invalid name and,
    unless ``replace``, if another kernel has it; :class:`MachineError` if the directory is not
    writable.
    """
    name = _normalize_name(name)
    directory = base / "kernels" / name
    if directory.exists() and not replace:
        _check_replaceable(directory, environment)
    shown = display_name or (DEFAULT_NAME if name == DEFAULT_NAME else f"{name} (danlu)")
    spec = environment_kernel_json(shown, environment) if environment else kernel_json(shown)
    try:
        _write_kernelspec(directory, json.dumps(spec, indent=1) + "\n")
    except OSError as error:
        raise MachineError(
            f"cannot write {directory}: {error.strerror}",
            hint="`danlu kernel install --user` installs into your home directory",
        ) from error
    return directory


def _check_replaceable(directory: Path, environment: str) -> None:
    """Raise :class:`UsageError` unless ``directory`` is the kernel that is being installed."""
    existing = _read_kernelspec(directory)
    if existing is None:
        reason = "is a kernel of another program"
    elif existing.environment != environment:
        what = f"environment {existing.environment}" if existing.environment else "the notebook"
        reason = f"is the kernel of {what}"
    else:
        return
    raise UsageError(
        f"{directory} {reason}",
        hint="overwrite it with --replace, or choose another name with --name",
    )


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
        environment = str(spec.get("metadata", {}).get(_ENVIRONMENT_KEY, ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if _MODULE not in argv and not environment:
        return None
    ready = shutil.which(argv[0]) is not None
    return Kernelspec(directory.name, display_name, directory, argv[0], ready, environment)


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
