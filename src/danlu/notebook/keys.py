"""The keys of a cell: one table, from which cells and options are read, checked and explained.

A key is written ``%key=value`` in a cell, and ``--key value`` after ``%%distributed``; letter case,
``-`` and ``_`` do not count. Beside those of :data:`KEYS` each replica type of a framework is one
(``%worker=2``), those of frameworks of other packages too.

Names are those of ``danlu train``, with one decision: ``env`` is a build file there, a variable in
``danlu run --env``, and a variable in IPython's own ``%env``. Here it is both, told apart by its
form alone: ``NAME=VALUE`` is a variable, and nothing with ``=`` is a build file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from danlu.notebook import readers

if TYPE_CHECKING:
    from danlu.training.framework import Framework

__all__ = [
    "KEYS",
    "SHARES",
    "Key",
    "find",
    "is_role",
    "is_share",
    "near",
    "plain",
    "roles",
    "spelled",
]


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key.

    ``name`` is how it is shown, ``aliases`` what else it may be called, ``short`` its letter as an
    option. ``takes`` is the value in a few letters (empty: true or false), ``help`` a sentence,
    ``examples`` are values. ``read`` gives the fields of a :class:`CellOrder` that a value stands
    for; tuples and mappings are added to what was said before, anything else is said once.
    """

    name: str
    takes: str
    help: str
    examples: tuple[str, ...]
    read: Callable[[str], Mapping[str, Any]]
    aliases: tuple[str, ...] = ()
    short: str = ""


def plain(word: str) -> str:
    """A key or replica type as they are compared: ``cleanPolicy``, ``clean-policy`` are one."""
    return word.replace("-", "").replace("_", "").lower()


def _one(field: str, reader: readers.Reader, text: str) -> dict[str, Any]:
    return {field: reader(text)}


def _several(field: str, reader: readers.Reader, text: str) -> dict[str, Any]:
    value = reader(text)
    return {field: value if isinstance(value, tuple) else (value,)}


def _environment(text: str) -> dict[str, Any]:
    found = readers.variables(text)
    return {"env": readers.environment(text)} if found is None else {"variables": found}


KEYS: tuple[Key, ...] = (
    Key(
        name="framework",
        takes="NAME",
        help="What the code trains with; where it is not said, what the code imports.",
        examples=("pytorch", "tensorflow"),
        read=partial(_one, "framework", readers.framework),
    ),
    Key(
        name="cpu",
        takes="QUANTITY",
        help="Cores of each replica: of a type after `;` on its line, else of all.",
        examples=("2", "500m"),
        read=partial(_one, "cpu", readers.quantity),
    ),
    Key(
        name="memory",
        takes="QUANTITY",
        help="Memory of each replica: of a type after `;` on its line, else of all.",
        examples=("512Mi", "4G"),
        read=partial(_one, "memory", readers.quantity),
    ),
    Key(
        name="gpu",
        takes="N",
        help="GPUs of each replica: of a type after `;` on its line, else of all that compute.",
        examples=("1",),
        read=partial(_one, "gpu", readers.whole()),
    ),
    Key(
        name="cleanPolicy",
        takes="POLICY",
        help="Which replicas' remains are removed at the end: `all`, `running` or `none`.",
        examples=("running",),
        read=partial(_one, "clean", readers.any_of("All", "Running", "None")),
        aliases=("cleanPodPolicy", "clean"),
    ),
    Key(
        name="image",
        takes="REF",
        help="Run in containers of this image.",
        examples=("registry.example/team/torch:2.8",),
        read=partial(_one, "image", readers.word),
    ),
    Key(
        name="env",
        takes="NAME=VALUE or FILE[:FUNC]",
        help="A variable of every replica's environment; or the build file of the environment to "
        "run in. Repeatable, for variables.",
        examples=("EPOCHS=3", "build.envd:gpu"),
        read=_environment,
        short="e",
    ),
    Key(
        name="volume",
        takes="SRC:DST[:ro]",
        help="Show a file or directory of this machine to containers at DST. Repeatable.",
        examples=("data:/data:ro",),
        read=partial(_several, "volumes", readers.volume),
        short="v",
    ),
    Key(
        name="name",
        takes="NAME",
        help="The job's name.",
        examples=("mnist-2",),
        read=partial(_one, "name", readers.job_name),
    ),
    Key(
        name="on",
        takes="PLACE",
        help="Where it runs: `local`, or the name of a context.",
        examples=("local",),
        read=partial(_one, "on", readers.word),
    ),
    Key(
        name="send",
        takes="NAME,...",
        help="Variables of the notebook that the code finds set. Repeatable.",
        examples=("x,y",),
        read=partial(_several, "send", readers.names),
    ),
    Key(
        name="return",
        takes="NAME,...",
        help="Variables of the code that the notebook gets at the end, from rank 0. Repeatable.",
        examples=("losses,model",),
        read=partial(_several, "returns", readers.names),
        aliases=("returns",),
    ),
    Key(
        name="every",
        takes="",
        help="Get what is returned from every replica, as a mapping by the replica's name.",
        examples=("true",),
        read=partial(_one, "every", readers.yes),
    ),
    Key(
        name="module",
        takes="NAME,...",
        help="Local modules or packages to be sent that no import of the cell names. Repeatable.",
        examples=("plugins", "package.helpers"),
        read=partial(_several, "modules", readers.module_names),
        aliases=("modules",),
    ),
    Key(
        name="detach",
        takes="",
        help="Leave the job running; `%jobs attach NAME` follows it and gets what it returns.",
        examples=("true",),
        read=partial(_one, "detach", readers.yes),
    ),
    Key(
        name="restart",
        takes="POLICY",
        help="When a replica that ended is run again: `Always`, `OnFailure`, `Never`, `ExitCode`.",
        examples=("OnFailure",),
        read=partial(_one, "restart", readers.any_of("Always", "OnFailure", "Never", "ExitCode")),
    ),
    Key(
        name="backoff-limit",
        takes="N",
        help="Restarts before the job fails.",
        examples=("3",),
        read=partial(_one, "backoff_limit", readers.whole()),
    ),
    Key(
        name="deadline",
        takes="TIME",
        help="The job fails after this time.",
        examples=("90s", "1h30m"),
        read=partial(_one, "deadline", readers.duration),
    ),
    Key(
        name="lines",
        takes="N",
        help="How many lines of the replicas' logs are shown at once.",
        examples=("20",),
        read=partial(_one, "lines", readers.whole()),
    ),
    Key(
        name="sweep",
        takes="NAME=VALUES",
        help="Run at all of A,B,C or of LOW:HIGH[:STEP|:log]; the code finds NAME set. Repeatable.",
        examples=("lr=0.1,0.01", "depth=2:6", "rate=1e-4:1e-1:log"),
        read=partial(_several, "sweep", readers.sweep),
    ),
    Key(
        name="metric",
        takes="NAME",
        help="What a sweep compares.",
        examples=("loss",),
        read=partial(_one, "metric", readers.word),
    ),
    Key(
        name="goal",
        takes="min or max",
        help="Whether the least or the greatest of it is best.",
        examples=("max",),
        read=partial(_one, "goal", readers.any_of("min", "max")),
    ),
    Key(
        name="metric-pattern",
        takes="REGEX",
        help="Take it from the leader's log: the last match.",
        examples=("loss=([0-9.]+)",),
        read=partial(_one, "pattern", readers.pattern),
        aliases=("pattern",),
    ),
    Key(
        name="parallel",
        takes="N",
        help="Jobs of a sweep at once; where it is not said, what this machine has room for.",
        examples=("2",),
        read=partial(_one, "parallel", readers.whole(1)),
    ),
    Key(
        name="trials",
        takes="N",
        help="Have Optuna choose N points of a sweep (danlu[sweep]).",
        examples=("20",),
        read=partial(_one, "trials", readers.whole(1)),
    ),
)

#: The keys that may follow a replica type on its line.
SHARES = ("cpu", "memory", "gpu")

_BY_NAME = {plain(name): key for key in KEYS for name in (key.name, *key.aliases)}


def find(word: str) -> Key | None:
    """The key that a word of the user's is."""
    return _BY_NAME.get(plain(word))


def roles() -> dict[str, str]:
    """The replica types of all frameworks, as they are written, by their plain form.

    A type of somebody else's framework that is called as a key is, is that key.
    """
    from danlu.training.registry import frameworks

    return _types(frameworks())


def _types(frameworks: Iterable[Framework]) -> dict[str, str]:
    found = {plain(one): str(one) for framework in frameworks for one in framework.types}
    return {name: found[name] for name in sorted(found) if name not in _BY_NAME}


def is_role(word: str) -> bool:
    """Whether a word of the user's is a replica type of any framework."""
    from danlu.training.registry import BUILT_IN

    name = plain(word)
    # Other packages are looked through only for a word that nobody else knows.
    return name not in _BY_NAME and (name in _types(BUILT_IN) or name in roles())


def is_share(word: str) -> bool:
    """Whether a word of the user's is a key that may follow a replica type."""
    key = find(word)
    return key is not None and key.name in SHARES


def near(word: str) -> str:
    """How the key or replica type is written that ``word`` may be meant for; empty for none."""
    known = {name: spelled(type) for name, type in roles().items()}
    known |= {name: key.name for name, key in _BY_NAME.items()}
    found = readers.nearest(plain(word), list(known))
    return known[found] if found else ""


def spelled(type: str) -> str:
    """A replica type as a key: ``worker``, ``tuner-tracker`` (as ``danlu train`` has it)."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type).lower()
