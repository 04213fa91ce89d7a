"""The names of a cell's options: those of the table, and the replica types of every framework.

Case, ``-`` and ``_`` are ignored. Replica types (``%worker=2``) include those of frameworks from
other packages.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from danlu.submission.options import (
    JOB_OPTIONS,
    JobOption,
    format_option_name,
    normalize_option_name,
)
from danlu.training.framework import Framework
from danlu.training.registry import BUILT_IN_FRAMEWORKS, list_frameworks
from danlu.util.suggest import closest_match

#: The options of a cell.
OPTIONS = tuple(option for option in JOB_OPTIONS if option.examples)

#: Options that may follow a replica type, after ``;``.
RESOURCE_OPTIONS = ("cpu", "memory", "gpu")


_NAMES = [(name, option) for option in OPTIONS for name in (option.name, *option.aliases)]
_BY_NAME = {normalize_option_name(name): option for name, option in _NAMES}


def find_option(word: str) -> JobOption | None:
    """Return the option called ``word``, under its name or an alias."""
    return _BY_NAME.get(normalize_option_name(word))


def replica_types() -> dict[str, str]:
    """Return the replica types of all frameworks by their normalized names.

    A type of a third-party framework that has the name of an option is left out: the option wins.
    """
    return _types_by_name(list_frameworks())


def _types_by_name(frameworks: Iterable[Framework]) -> dict[str, str]:
    types = {
        normalize_option_name(name): str(name)
        for framework in frameworks
        for name in framework.replica_types
    }
    return {name: types[name] for name in sorted(types) if name not in _BY_NAME}


def is_replica_type(word: str) -> bool:
    """Return whether ``word`` is a replica type of any framework."""
    name = normalize_option_name(word)
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
    known = {name: format_option_name(type) for name, type in replica_types().items()}
    known |= {normalize_option_name(name): name for name, _ in _NAMES}
    match = closest_match(normalize_option_name(word), known, cutoff=0.75)
    return known[match] if match else ""


def help_text() -> str:
    """Return the output of ``%%distributed --help``, at most 79 columns wide."""
    types = ", ".join(format_option_name(name) for name in replica_types().values())
    lines = [
        "%%distributed [--KEY VALUE ...]: run the cell on the replicas of a job.",
        "In the danlu kernel, or in any kernel after %load_ext danlu.notebook, you can",
        "also start a cell with %KEY=VALUE lines.",
        "",
        *_help_entry("--TYPE N[;cpu=Q][;memory=Q][;gpu=N]", f"Replicas of a type: {types}"),
    ]
    for option in OPTIONS:
        name = f"--{format_option_name(option.name)}"
        names = f"-{option.short}, {name}" if option.short else name
        values = "|".join(option.choices) or option.metavar
        lines += _help_entry(f"{names} {values}".rstrip(), option.help.replace("`", ""))
    return "\n".join(lines)


def _help_entry(head: str, text: str) -> list[str]:
    indent = " " * 6
    return [
        f"  {head}",
        *textwrap.wrap(text, 79, initial_indent=indent, subsequent_indent=indent),
    ]
