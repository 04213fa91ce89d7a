"""The options of a cell: one table for parsing, checking, ``--help`` and the reference page.

An option is written ``%key=value`` in a cell and ``--key value`` after ``%%distributed``. Case,
``-`` and ``_`` are ignored. In addition to the table, every replica type of every framework,
including frameworks from other packages, is an option (``%worker=2``).

Names match ``danlu train``, except ``env``: in ``danlu train`` it is a build file, in ``danlu run``
and in IPython's ``%env`` an environment variable. Here it is both, distinguished by the ``=`` of
``NAME=VALUE``, which the name of a build file never contains.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from danlu.notebook import converters
from danlu.notebook.converters import Converter
from danlu.training.framework import Framework
from danlu.training.registry import BUILT_IN_FRAMEWORKS, list_frameworks
from danlu.util.suggest import closest_match


class CellOption(msgspec.Struct, frozen=True):
    """An option of a cell.

    ``metavar`` is empty for flags. ``field`` is the field of :class:`CellOptions` if its name
    differs from the option's. The values of a ``repeatable`` option are collected in a tuple.
    """

    name: str
    metavar: str
    help: str
    examples: tuple[str, ...]
    convert: Converter
    aliases: tuple[str, ...] = ()
    short: str = ""
    field: str = ""
    repeatable: bool = False

    def read(self, text: str) -> Mapping[str, Any]:
        """Return the fields of :class:`CellOptions` that the value ``text`` sets."""
        value = self.convert(text)
        if self.name == "env":
            return {"variables": value} if isinstance(value, Mapping) else {"env": value}
        if self.repeatable and not isinstance(value, tuple):
            value = (value,)
        return {self.field or self.name.replace("-", "_"): value}


OPTIONS: tuple[CellOption, ...] = (
    CellOption(
        "framework",
        "NAME",
        "Training framework; by default detected from the cell's imports.",
        ("pytorch", "tensorflow"),
        converters.framework,
    ),
    CellOption(
        "cpu",
        "QUANTITY",
        "CPU cores per replica; after a replica type and `;`, only for that type.",
        ("2", "500m"),
        converters.quantity,
    ),
    CellOption(
        "memory",
        "QUANTITY",
        "Memory per replica; after a replica type and `;`, only for that type.",
        ("512Mi", "4G"),
        converters.quantity,
    ),
    CellOption(
        "gpu",
        "N",
        "GPUs per replica that computes; after a replica type and `;`, only for that type.",
        ("1",),
        converters.whole_number(),
    ),
    CellOption(
        "cleanPolicy",
        "POLICY",
        "Which pods to delete when the job ends: `all`, `running` or `none`.",
        ("running",),
        converters.choice("All", "Running", "None"),
        aliases=("cleanPodPolicy", "clean"),
        field="clean_pod_policy",
    ),
    CellOption(
        "image",
        "REF",
        "Run in containers of this image.",
        ("registry.example/team/torch:2.8",),
        converters.single_word,
    ),
    CellOption(
        "env",
        "NAME=VALUE or FILE[:FUNC]",
        "Set an environment variable (repeatable), or run in the environment of a build file.",
        ("EPOCHS=3", "build.envd:gpu"),
        converters.env,
        short="e",
    ),
    CellOption(
        "volume",
        "SRC:DST[:ro]",
        "Mount a file or directory of this machine into the containers. Repeatable.",
        ("data:/data:ro",),
        converters.volume,
        short="v",
        field="volumes",
        repeatable=True,
    ),
    CellOption("name", "NAME", "Name of the job.", ("mnist-2",), converters.job_name),
    CellOption(
        "on",
        "CONTEXT",
        "Where to run: `local`, or the name of a context.",
        ("local",),
        converters.single_word,
    ),
    CellOption(
        "send",
        "NAME,...",
        "Send variables of the notebook to the replicas. Repeatable.",
        ("x,y",),
        converters.variable_names,
        repeatable=True,
    ),
    CellOption(
        "return",
        "NAME,...",
        "Set variables in the notebook to their final values on rank 0. Repeatable.",
        ("losses,model",),
        converters.variable_names,
        aliases=("returns",),
        field="returns",
        repeatable=True,
    ),
    CellOption(
        "every",
        "",
        "Return the variables of every replica, as a dict by replica name.",
        ("true",),
        converters.boolean,
    ),
    CellOption(
        "module",
        "NAME,...",
        "Send local modules or packages that the cell does not import directly. Repeatable.",
        ("plugins", "package.helpers"),
        converters.module_names,
        aliases=("modules",),
        field="modules",
        repeatable=True,
    ),
    CellOption(
        "detach",
        "",
        "Return immediately; `%jobs attach NAME` follows the job and sets its results.",
        ("true",),
        converters.boolean,
    ),
    CellOption(
        "restart",
        "POLICY",
        "When to restart a replica: `Always`, `OnFailure`, `Never` or `ExitCode`.",
        ("OnFailure",),
        converters.choice("Always", "OnFailure", "Never", "ExitCode"),
    ),
    CellOption(
        "backoff-limit",
        "N",
        "Number of restarts before the job fails.",
        ("3",),
        converters.whole_number(),
    ),
    CellOption(
        "deadline",
        "TIME",
        "Fail the job after this time.",
        ("90s", "1h30m"),
        converters.duration,
    ),
    CellOption("lines", "N", "Number of log lines to show.", ("20",), converters.whole_number()),
    CellOption(
        "limit",
        "SIZE",
        "Maximum size to send, and to return per replica (default: `transfer_limit`).",
        ("10GB",),
        converters.size,
    ),
    CellOption(
        "trust-results",
        "",
        "Unpickle results of any image, which can run code in the notebook.",
        ("true",),
        converters.boolean,
    ),
    CellOption(
        "sweep",
        "NAME=VALUES",
        "Run once per value of A,B,C or LOW:HIGH[:STEP|:log], set as NAME. Repeatable.",
        ("lr=0.1,0.01", "depth=2:6", "rate=1e-4:1e-1:log"),
        converters.sweep_axis,
        repeatable=True,
    ),
    CellOption(
        "metric", "NAME", "Metric that the sweep optimizes.", ("loss",), converters.single_word
    ),
    CellOption(
        "goal",
        "min or max",
        "Whether to minimize or maximize the metric.",
        ("max",),
        converters.choice("min", "max"),
    ),
    CellOption(
        "metric-pattern",
        "REGEX",
        "Read the metric from the leader's log: the last match.",
        ("loss=([0-9.]+)",),
        converters.pattern,
        aliases=("pattern",),
        field="pattern",
    ),
    CellOption(
        "parallel",
        "N",
        "Number of sweep jobs at a time (default: as many as fit on this machine).",
        ("2",),
        converters.whole_number(1),
    ),
    CellOption(
        "trials",
        "N",
        "Let Optuna choose N points of the sweep (requires optuna).",
        ("20",),
        converters.whole_number(1),
    ),
)

#: Options that may follow a replica type, after ``;``.
RESOURCE_OPTIONS = ("cpu", "memory", "gpu")


def normalize_name(word: str) -> str:
    """Return the form in which names are compared: ``cleanPolicy`` equals ``clean-policy``."""
    return word.replace("-", "").replace("_", "").lower()


_BY_NAME = {
    normalize_name(name): option for option in OPTIONS for name in (option.name, *option.aliases)
}


def find_option(word: str) -> CellOption | None:
    """Return the option called ``word``, under its name or an alias."""
    return _BY_NAME.get(normalize_name(word))


def replica_types() -> dict[str, str]:
    """Return the replica types of all frameworks by their normalized names.

    A type of a third-party framework that has the name of an option is left out: the option wins.
    """
    return _types_by_name(list_frameworks())


def _types_by_name(frameworks: Iterable[Framework]) -> dict[str, str]:
    types = {
        normalize_name(name): str(name)
        for framework in frameworks
        for name in framework.replica_types
    }
    return {name: types[name] for name in sorted(types) if name not in _BY_NAME}


def is_replica_type(word: str) -> bool:
    """Return whether ``word`` is a replica type of any framework."""
    name = normalize_name(word)
    # Entry points of other packages are loaded only for words that nothing built in explains.
    return name not in _BY_NAME and (
        name in _types_by_name(BUILT_IN_FRAMEWORKS) or name in replica_types()
    )


def is_resource_option(word: str) -> bool:
    """Return whether ``word`` is an option that may follow a replica type."""
    option = find_option(word)
    return option is not None and option.name in RESOURCE_OPTIONS


def suggest_option(word: str) -> str:
    """Return the option or replica type that ``word`` may be a misspelling of, or nothing."""
    known = {name: display_name(type) for name, type in replica_types().items()}
    known |= {name: option.name for name, option in _BY_NAME.items()}
    match = closest_match(normalize_name(word), known, cutoff=0.75)
    return known[match] if match else ""


def display_name(name: str) -> str:
    """Return a name in kebab case, as flags have it: ``worker``, ``tuner-tracker``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def help_text() -> str:
    """Return the output of ``%%distributed --help``, at most 79 columns wide."""
    types = ", ".join(display_name(name) for name in replica_types().values())
    lines = [
        "%%distributed [--KEY VALUE ...]: run the cell on the replicas of a job.",
        "In the danlu kernel, or in any kernel after %load_ext danlu.notebook, you can",
        "also start a cell with %KEY=VALUE lines.",
        "",
        *_help_entry("--TYPE N[;cpu=Q][;memory=Q][;gpu=N]", f"Replicas of a type: {types}"),
    ]
    for option in OPTIONS:
        name = f"--{display_name(option.name)}"
        names = f"-{option.short}, {name}" if option.short else name
        lines += _help_entry(f"{names} {option.metavar}".rstrip(), option.help.replace("`", ""))
    return "\n".join(lines)


def _help_entry(head: str, text: str) -> list[str]:
    indent = " " * 6
    return [
        f"  {head}",
        *textwrap.wrap(text, 79, initial_indent=indent, subsequent_indent=indent),
    ]
