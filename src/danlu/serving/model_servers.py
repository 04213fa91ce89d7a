"""The model servers that an image can have: danlu's, or another one with an adapter.

An image has one, started by its program ``serve`` with the same options. Adding one is a file in
``adapters`` and a line here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec
from packaging.requirements import InvalidRequirement, Requirement

from danlu.environment.package_names import normalize_name
from danlu.errors import UsageError

_ADAPTERS = Path(__file__).with_name("adapters")
#: What the image's program imports besides the adapter.
SHARED_MODULE = _ADAPTERS / "packed.py"
_EXTRA = re.compile(r"\bextra\b")


class ModelServer(msgspec.Struct, frozen=True):
    """A model server.

    Attributes:
        package: The Python package of the training environment; empty if the base image has it.
        live_path: Answers 200 while the server runs.
        ready_path: Answers 200 when the model is loaded.
    """

    name: str
    package: str = ""
    live_path: str = "/v2/health/live"
    ready_path: str = "/v2/health/ready"

    @property
    def adapter(self) -> Path:
        """The adapter's file."""
        return _ADAPTERS / f"{self.name}.py"


DANLU = ModelServer("danlu")
COMMAND = ModelServer("command")

#: By the names that ``danlu pack --server`` takes.
MODEL_SERVERS: Mapping[str, ModelServer] = {
    server.name: server
    for server in (
        DANLU,
        ModelServer("bentoml", "bentoml", "/livez", "/readyz"),
        ModelServer("mlserver", "mlserver"),
        ModelServer("litserve", "litserve", "/health", "/health"),
        ModelServer("kserve", "kserve"),
        ModelServer("triton"),
        ModelServer("vllm", "", "/health", "/health"),
    )
}


def choose_server(text: str) -> ModelServer:
    """Return the server of a name; any other text is a command line of the shell.

    Raises :class:`UsageError` for a word that is neither a server nor a path.
    """
    if text in MODEL_SERVERS:
        return MODEL_SERVERS[text]
    if not text.strip() or text.isidentifier():
        raise UsageError(
            f"unknown model server {text!r}",
            hint=f"use {', '.join(MODEL_SERVERS)}, or a command line such as"
            " '/opt/server --port $PORT'",
        )
    return COMMAND


def find_model_server(name: str) -> ModelServer:
    """Return the server with the name in an image's label; danlu's if it is unknown."""
    return COMMAND if name == COMMAND.name else MODEL_SERVERS.get(name, DANLU)


def list_server_packages(
    server: ModelServer, locked: Collection[str], requires: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Return the names of a server's package and of all that it depends on.

    ``locked`` are the names in the lock, ``requires`` the requirements of each distribution of the
    training environment (``Requires-Dist``). Requirements of extras count if another one asks for
    the extra; markers of platforms do not, because only what is locked is there. Raises
    :class:`UsageError` if the environment does not have the package.
    """
    if not server.package:
        return ()
    known = {normalize_name(name) for name in locked}
    if server.package not in known:
        raise UsageError(
            f"the environment has no package {server.package}",
            hint=f'add it to the build file: install.python_packages(name=["{server.package}"])',
        )
    found: set[tuple[str, str]] = set()
    pending = [(server.package, "")]
    while pending:
        name, extra = pending.pop()
        if (name, extra) in found or name not in known:
            continue
        found.add((name, extra))
        for text in requires.get(name, ()):
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if _is_wanted(requirement, extra):
                dependency = normalize_name(requirement.name)
                pending += [(dependency, wanted) for wanted in ("", *requirement.extras)]
    return tuple(sorted({name for name, _ in found}))


def _is_wanted(requirement: Requirement, extra: str) -> bool:
    marker = str(requirement.marker or "")
    if not _EXTRA.search(marker):
        return not extra
    return bool(extra) and f'extra == "{extra}"' in marker
