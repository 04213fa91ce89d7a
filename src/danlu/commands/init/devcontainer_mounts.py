"""Mounts of a ``devcontainer.json``, as ``docker run --mount`` writes them."""

from __future__ import annotations

import re

from danlu.commands.init.devcontainer_variables import VariableExpander
from danlu.commands.init.draft import DraftCall

_LOCAL_FOLDER = "${localWorkspaceFolder}"
_HOME = re.compile(r"^\$\{localEnv:(?:HOME|USERPROFILE)\}(?:\$\{localEnv:(?:HOME|USERPROFILE)\})?")
_DATA_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SYNONYMS = {"src": "source", "dst": "target", "destination": "target"}

#: Options without effect here: Docker Desktop's caching, and empty ones.
_IGNORED_OPTIONS = {"consistency", ""}


def parse_mount(
    mount: object, user: str, expander: VariableExpander
) -> tuple[DraftCall | None, str]:
    """Return the call of ``runtime.mount``, or None and the reason why there is none.

    ``user`` is the user of the container, whose home directory becomes ``~``.
    """
    options = _split_options(mount)
    if options is None:
        return None, "invalid mount"
    kind = options.pop("type", "volume")
    source, target = options.pop("source", ""), options.pop("target", "")
    unknown = sorted(options.keys() - _IGNORED_OPTIONS)
    if unknown:
        return None, f"{', '.join(unknown)} has no equivalent"
    target, problem = expander.expand(target)
    if problem or not target.startswith("/"):
        return None, problem or "invalid target"
    target = _shorten_home(target, user)
    if kind == "volume":
        source, problem = expander.expand(source)
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", source)
        if problem or not _DATA_NAME.fullmatch(name):
            return None, problem or "a volume needs a name"
        return DraftCall("runtime.mount", (DraftCall("data.envd", (name,)), target)), ""
    if kind != "bind":
        return None, f"mounts of type {kind} have no equivalent"
    if source.endswith("docker.sock"):
        return None, "environments have no access to Docker"
    if source.startswith(_LOCAL_FOLDER):
        source = "." + source.removeprefix(_LOCAL_FOLDER)
        source = source.removeprefix("./") or "."
    source = _HOME.sub("~", source)
    source, problem = expander.expand(source)
    if problem or not source:
        return None, problem or "no source"
    return DraftCall("runtime.mount", (source, target)), ""


def _split_options(mount: object) -> dict[str, str] | None:
    if isinstance(mount, dict):
        pairs = [(str(name), str(value)) for name, value in mount.items()]
    elif isinstance(mount, str):
        pairs = [(name, value) for name, _, value in (p.partition("=") for p in mount.split(","))]
    else:
        return None
    return {_SYNONYMS.get(name.strip(), name.strip()): value.strip() for name, value in pairs}


def _shorten_home(target: str, user: str) -> str:
    home = "/root" if user in ("", "root") else f"/home/{user}"
    return "~" + target.removeprefix(home) if target.startswith(f"{home}/") else target
