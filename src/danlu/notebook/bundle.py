"""What travels with a cell: its code, the local modules it imports, the variables it is sent."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from danlu import guest
from danlu.commands.imports import imported
from danlu.commands.modules import Found, entries, find
from danlu.commands.trees import content
from danlu.guest.place import AGAIN
from danlu.guest.versions import python
from danlu.notebook.bound import check_options, check_returns
from danlu.notebook.values import Limits, Packed, pack

if TYPE_CHECKING:
    from danlu.notebook.types import Cell, CellOrder, Values

__all__ = ["Bundle", "command", "make"]

#: How words of a job's command name the program (:class:`danlu.jobs.types.Submission`).
PROGRAM = "$(DANLU_FILES)/run.py"

_GUESTS = ("__init__", "cell", "deliver", "leave", "parcel", "place", "trace", "versions")
_LONGEST = 100


class Bundle(msgspec.Struct, frozen=True):
    """A directory that is sent with a job: what it holds of the user's, and its size in bytes."""

    directory: Path
    modules: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    size: int = 0


def command(python: str = "python") -> tuple[str, ...]:
    """The words that run a cell on a replica; ``--NAME VALUE`` may follow them."""
    return (python, PROGRAM)


def make(
    cell: Cell,
    values: Values,
    *,
    target: Path,
    place: Path,
    path: Sequence[str],
    limits: Limits | None = None,
) -> Bundle:
    """Fill ``target``, an empty directory or none yet, with what ``cell`` needs on a replica.

    ``place`` is the notebook's directory and ``path`` where its kernel finds modules. The same
    cell, variables and files give the same bytes. Raises :class:`SyntaxError`, and
    :class:`UsageError` for variables and modules that are not there, too large, or cannot travel.
    """
    order = cell.order
    limits = limits or Limits()
    tree = ast.parse(cell.code, "cell")
    check_options(order.sweep)
    check_returns(tree, order)
    packed = pack(order.send, values, limits=limits)
    found = _modules(tree, order, packed, place=place, path=path)
    name = _file_name(order.name)
    _write(target / "cell" / f"{name}.py", cell.code.encode())
    for one in packed:
        _write(target / "values" / f"{one.name}.pickle", one.data)
    _copy_modules(found, target / "modules")
    _copy_guests(target)
    told = _told(order, packed, found, limits=limits, code=f"cell/{name}.py")
    text = json.dumps(told, indent=1, sort_keys=True)
    _write(target / "order.json", f"{text}\n".encode())
    return Bundle(target, found.names, tuple(one.name for one in packed), _size(target))


def _modules(
    tree: ast.Module,
    order: CellOrder,
    packed: Sequence[Packed],
    *,
    place: Path,
    path: Sequence[str],
) -> Found:
    wanted = [*imported(tree), *(name for one in packed for name in one.modules)]
    # Without any of them a job runs this Python.
    elsewhere = bool(order.image or order.env or order.on not in ("", "local"))
    places = entries(path, place=place, elsewhere=elsewhere)
    return find(wanted, places, needed=order.modules, elsewhere=elsewhere)


def _told(
    order: CellOrder, packed: Sequence[Packed], found: Found, *, limits: Limits, code: str
) -> dict[str, Any]:
    """What the guest reads: see danlu.guest.place."""
    own = set(found.names)
    values = {
        one.name: {
            "file": f"values/{one.name}.pickle",
            "modules": [name for name in one.modules if name.partition(".")[0] not in own],
            "libraries": {name: told for name, told in one.libraries.items() if name not in own},
        }
        for one in packed
    }
    return {
        "code": code,
        "python": python(),
        "values": values,
        "returns": list(order.returns),
        "every": order.every,
        "most": limits.one,
        "most_together": limits.together,
    }


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)[:_LONGEST].strip(".") or "cell"


def _copy_modules(found: Found, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name, source in found.files.items():
        _write(target / name, content(source))
        if source.stat().st_mode & 0o100:
            (target / name).chmod(0o755)


def _copy_guests(target: Path) -> None:
    source = Path(guest.__file__).parent
    (target / "danlu_guest").mkdir()
    for name in _GUESTS:
        shutil.copyfile(source / f"{name}.py", target / "danlu_guest" / f"{name}.py")
    shutil.copyfile(source / "run.py", target / "run.py")
    for directory, name, origin in (("again", AGAIN, "run"), ("last", "danlu", "report")):
        (target / directory).mkdir()
        shutil.copyfile(source / f"{origin}.py", target / directory / f"{name}.py")


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _size(directory: Path) -> int:
    return sum(one.stat().st_size for one in directory.rglob("*") if one.is_file())
