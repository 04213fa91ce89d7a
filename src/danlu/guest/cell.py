"""Run a cell on a replica, from the directory that the notebook sent.

``order.json`` says what lies there: the code, byte for byte, which becomes ``__main__``; local
``modules``; ``values``, pickled variables. Each ``--NAME VALUE`` is a variable too. What the cell
returns is pickled to the file that ``DANLU_VALUE_FILE`` names, what it raises to that of
``DANLU_RAISED_FILE``. With its neighbours it is copied there as the package ``danlu_guest``; a
replica's Python may be as old as 3.6, so they use nothing newer.
"""

import ast
import builtins
import importlib.machinery
import importlib.util
import json
import keyword
import os
import pickle
import re
import sys
import sysconfig
import traceback
import types
from typing import Any

from . import deliver, parcel, trace
from .leave import leave as leave
from .place import AGAIN, ARGUMENTS, RUNNING, Place, Refused
from .versions import differences, python

VALUE = "DANLU_VALUE_FILE"


# -- before the code ------------------------------------------------------------------------------


def surround(place: Place) -> None:
    """Have the sent modules found first, and the working directory where a notebook has it."""
    path = [one for one in sys.path if os.path.abspath(one or ".") != place.directory]
    path = [one for one in path if not _is_again(one)]
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    standard |= {os.path.join(one, "lib-dynload") for one in standard if one}
    behind = [number for number, one in enumerate(path, 1) if one in standard]
    # Behind the standard library, as in a kernel: a file random.py there shadows nothing.
    path.insert(max(behind or [0]), os.getcwd())
    # The last is danlu.py, for where danlu is not installed.
    sys.path[:] = [place.path("modules"), *path, place.path("again"), place.path("last")]
    known = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    # For launchers that start `python -m` with the name of this program once more.
    kept = [one for one in known if not _is_again(one)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*kept, place.path("again")])


def _is_again(directory: str) -> bool:
    """Whether it is such a directory: also one of the cell that ordered this job."""
    return os.path.isfile(os.path.join(directory, AGAIN + ".py"))


def main_module(place: Place) -> types.ModuleType:
    """A new ``__main__`` whose file is the code and which can be run again by name."""
    module = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", place.code)
    spec = importlib.machinery.ModuleSpec(AGAIN, loader, origin=place.path("again", AGAIN + ".py"))
    found = {"__file__": place.code, "__loader__": loader, "__spec__": spec, "__package__": ""}
    module.__dict__.update(found, __builtins__=builtins)
    return module


def variables(place: Place, arguments: "list[str]") -> "dict[str, Any]":
    """What the code finds set: the variables sent, and the options; :class:`Refused` for wrong."""
    found = _sent(place)
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            raise Refused(f"{word} is no option", "options are written --NAME VALUE")
        known = re.sub(r"\W", "_", name[2:])
        if not known.isidentifier() or keyword.iskeyword(known):
            raise Refused(f"{name} cannot be a variable", "give it a name as variables have them")
        found[known] = literal(value if equals else next(words, ""))
    return found


def literal(text: str) -> Any:
    """The number, list, truth … that a text is written as, else the text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _sent(place: Place) -> "dict[str, Any]":
    values = place.order["values"]
    _compare(values, place.order["python"])
    found = {}
    for name, told in values.items():
        with open(place.path(*told["file"].split("/")), "rb") as file:
            data = file.read()
        try:
            found[name] = pickle.loads(data)
        except Exception as error:
            what = "".join(traceback.format_exception_only(type(error), error)).strip()
            raise Refused(
                f"{name}, which the notebook sent, cannot be read in the environment of the job:"
                f" {what}",
                "build it in the cell, or send plain numbers, texts, lists and arrays",
            ) from error
    return found


def _compare(values: "dict[str, Any]", wrote: str) -> None:
    lines: dict[str, list[str]] = {}
    for name, told in values.items():
        for what, there, here in differences(wrote, told["modules"], told["libraries"]):
            line = f"{what}: {there} in the notebook, {here} in the environment of the job"
            lines.setdefault(line, []).append(name)
    if lines:
        concerned = {name for names in lines.values() for name in names}
        named = ", ".join(sorted(concerned))
        raise Refused(
            "\n  ".join([f"{named} cannot be sent between these versions", *sorted(lines)]),
            "give the job an environment with the notebook's versions,"
            " or send plain numbers, texts and lists",
        )


# -- the code -------------------------------------------------------------------------------------


def execute(place: Place, namespace: "dict[str, Any]") -> None:
    """Run the code; line N of it is line N of the cell."""
    with open(place.code, "rb") as file:
        text = file.read().decode("utf-8")
    exec(compile(text, place.code, "exec", dont_inherit=True), namespace)


def again(directory: str, namespace: "dict[str, Any]") -> None:
    """Be the ``__main__`` of a process that ``multiprocessing`` spawned."""
    place = Place(directory)
    for name in [one for one in namespace if not one.startswith("__")]:
        del namespace[name]
    arguments = json.loads(os.environ.get(ARGUMENTS, "[]"))
    namespace.update(variables(place, arguments), __file__=place.code)
    execute(place, namespace)


# -- after the code -------------------------------------------------------------------------------


def is_wanted(place: Place) -> bool:
    """Whether this process is the one, of those on a replica, whose variables are asked for."""
    asked = (
        (os.environ.get(VALUE) or deliver.asked()) and place.order["returns"] and not place.beneath
    )
    return bool(asked) and all(os.environ.get(name, "0") == "0" for name in trace.RANKS)


def give(place: Place, namespace: "dict[str, Any]") -> None:
    """Write what is to be returned; :class:`Refused` where it is not there or cannot be sent."""
    order = place.order
    names = [one for one in order["returns"] if one in namespace]
    missing = [one for one in order["returns"] if one not in namespace]
    if missing and not order["every"]:
        raise Refused(
            f"the cell has no variable {missing[0]} to return",
            _nearest(missing[0], namespace) or "set it where the code always comes by",
        )
    values, room = {}, order["most_together"]
    for name in names:
        values[name] = _packed(name, namespace[name], order["most"], room)
        room -= len(values[name]["data"])
    told = {"python": python(), "values": values}
    data = pickle.dumps(told, min(4, parcel.PROTOCOL))
    if os.environ.get(VALUE):
        trace.write(os.environ[VALUE], data)
        return
    try:
        deliver.value(data)
    except deliver.NotDelivered as error:
        raise Refused(str(error), "return less, or write it to a volume") from error


def _nearest(name: str, namespace: "dict[str, Any]") -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, [one for one in namespace if not one.startswith("__")], 1)
    return f"did you mean {near[0]}?" if near else ""


def _packed(name: str, value: Any, most: int, room: int) -> "dict[str, Any]":
    try:
        return parcel.packed(name, value, most=most, room=room)
    except parcel.NotSent as error:
        raise Refused(f"{name} cannot be returned: {error}", error.hint) from error


# -- all of it ------------------------------------------------------------------------------------


def failed(place: Place, error: BaseException) -> int:
    """Print what was raised as Python does, tell the notebook, and give the exit code."""
    if isinstance(error, SystemExit) and error.code is not None:
        code = error.code if isinstance(error.code, int) else 1
        if not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        if code:
            trace.note(place, error, trace.report(place, error))
        return code
    if isinstance(error, Refused):
        lines = [f"danlu: {error}", *([f"hint: {error.hint}"] if error.hint else [])]
        text = "\n".join(lines) + "\n"
    else:
        text = trace.report(place, error)
    trace.note(place, error, text)
    if sys.excepthook is not sys.__excepthook__ and not isinstance(error, Refused):
        sys.excepthook(type(error), error, error.__traceback__)
    else:
        sys.stderr.write(text)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def main(directory: str, arguments: "list[str]") -> int:
    """Run the cell; the exit code is 1 where it raised, and its own where it exits with one."""
    place = Place(directory)
    os.environ[RUNNING], os.environ[ARGUMENTS] = place.directory, json.dumps(arguments)
    surround(place)
    sys.modules["danlu_run"] = sys.modules["__main__"]
    module = sys.modules["__main__"] = main_module(place)
    try:
        module.__dict__.update(variables(place, arguments))
        try:
            execute(place, module.__dict__)
        except SystemExit as stop:
            if stop.code not in (None, 0):
                raise
        if is_wanted(place):
            give(place, module.__dict__)
    except BaseException as error:
        return failed(place, error)
    return 0
