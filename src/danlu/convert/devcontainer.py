"""Read a ``devcontainer.json`` into a draft (https://containers.dev/implementors/json_reference/).

Every key is carried over or listed in the build file with the reason; none is dropped silently.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danlu.convert.dockerfile import read_dockerfile
from danlu.convert.draft import BuildFileDraft, DraftCall
from danlu.convert.host import PYTHONS, parse_image_release
from danlu.convert.shell_commands import read_script
from danlu.environment.image_layout import PROJECT
from danlu.errors import UsageError
from danlu.util.jsonc import parse_jsonc

#: Where the file may be, relative to the directory that the user names.
_PLACES = ("devcontainer.json", ".devcontainer/devcontainer.json", ".devcontainer.json")
_MAX_BYTES = 1 << 20

#: Why keys are not carried over, for those whose reason is not obvious.
_REASONS = {
    "features": "not installed: write install.*, or run() with their commands",
    "mounts": "write runtime.mount(SOURCE, TARGET)",
    "initializeCommand": "it would run on the host; run it yourself",
    "runArgs": "they are options of `docker run`",
    "remoteUser": "programs run as the environment's user, with your user id",
    "containerUser": "programs run as the environment's user, with your user id",
}

_NUMBER = re.compile(r"(?!-0$)-?\d{1,15}(?:\.\d+)?")

_IMAGE_KEYS = {"image", "build", "dockerFile", "context", "$schema"}


@dataclass
class _ReaderState:
    """A file that is being read: its values, and the draft to fill."""

    path: Path
    project: Path
    values: dict[str, Any]
    draft: BuildFileDraft

    def skip(self, key: str, value: object, reason: str = "") -> None:
        """List a key that is not carried over, with the reason."""
        shown = value if isinstance(value, str) else repr(value)
        self.draft.untranslated.append(f"{key}: {shown}" + (f"  ({reason})" if reason else ""))

    def depends_on_host(self, key: str, text: str) -> bool:
        """Return whether ``text`` still has variables; list the key if it does."""
        if "${" in text:
            self.skip(key, text, "a build file cannot depend on variables of the host")
        return "${" in text


def find_devcontainer(place: Path) -> Path | None:
    """Return the ``devcontainer.json`` of a directory, or None if there is none.

    Raises :class:`UsageError` if there are several to choose from.
    """
    for name in _PLACES:
        if (place / name).is_file():
            return place / name
    found = sorted([*place.glob(".devcontainer/*/devcontainer.json"), *_glob_named(place)])
    if len(found) > 1:
        names = ", ".join(path.relative_to(place).as_posix() for path in found)
        raise UsageError(f"{place} has several dev containers: {names}", hint="name one of them")
    return found[0] if found else None


def _glob_named(place: Path) -> Iterator[Path]:
    return place.glob("*/devcontainer.json") if place.name == ".devcontainer" else iter(())


def read_devcontainer(path: Path, directory: Path, draft: BuildFileDraft) -> str:
    """Fill ``draft`` from ``path``, a ``devcontainer.json`` of the project ``directory``.

    Raises :class:`UsageError` if the file is invalid, or uses Docker Compose.
    """
    project = directory.resolve()
    values = _expand_variables(_parse_file(path), project)
    draft.must_be_complete = True
    state = _ReaderState(path, project, values, draft)
    with _refuse_invalid_value("build or image", state):
        _read_image(state)
    # What the last ones set wins.
    for key, value in sorted(values.items(), key=lambda item: item[0] == "remoteEnv"):
        if key in _IMAGE_KEYS or key in _COMMAND_KEYS:
            continue
        reader = _READERS.get(key)
        if reader is None:
            state.skip(key, value, _REASONS.get(key, ""))
            if key in ("features", "mounts"):
                draft.notes.append(f"{key} were not carried over: {_REASONS[key]}")
        else:
            with _refuse_invalid_value(key, state):
                reader(key, value, state)
    for key in _COMMAND_KEYS:  # in the order in which they run, not that of the file
        if key in values:
            _read_command(key, values[key], state)
    release = parse_image_release(draft.insert_defaults(draft.image))
    if draft.needs_python and not draft.python and release in PYTHONS:
        draft.python = PYTHONS[release]
    return ""


@contextmanager
def _refuse_invalid_value(key: str, state: _ReaderState) -> Iterator[None]:
    """Turn the errors of reading a value of another type into one that names the key."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{state.path.name}: invalid value of {key}",
            hint="see https://containers.dev/implementors/json_reference/",
        ) from error


def _parse_file(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MAX_BYTES:
        raise UsageError(f"{path.name} is larger than {_MAX_BYTES} bytes")
    try:
        values = parse_jsonc(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise UsageError(f"{path.name}: invalid JSON: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path.name} must contain an object")
    if "dockerComposeFile" in values:
        raise UsageError(
            f"{path.name} uses Docker Compose, which is not supported",
            hint="convert the Dockerfile of its service: `danlu init --from Dockerfile`",
        )
    return values


def _expand_variables(value: Any, project: Path) -> Any:
    """Expand the variables in all texts that have the same value on every machine."""
    if isinstance(value, dict):
        return {name: _expand_variables(item, project) for name, item in value.items()}
    if isinstance(value, list):
        return [_expand_variables(item, project) for item in value]
    if not isinstance(value, str):
        return value
    value = value.replace("${containerWorkspaceFolder}", PROJECT)
    value = value.replace("${containerWorkspaceFolderBasename}", PROJECT[1:])
    return value.replace("${localWorkspaceFolderBasename}", project.name)


# -- image


def _read_image(state: _ReaderState) -> None:
    values = state.values
    build = values.get("build", {})
    if not isinstance(build, dict):
        raise UsageError(f"{state.path.name}: `build` must be an object")
    dockerfile = build.get("dockerfile") or values.get("dockerFile")
    if dockerfile:
        context = str(build.get("context") or values.get("context") or ".")
        _read_build(str(dockerfile), context, build, state)
        return
    for key, value in build.items():
        state.skip(f"build.{key}", value, "build.dockerfile is missing")
    if not values.get("image"):
        raise UsageError(f"{state.path.name} has neither `image` nor `build.dockerfile`")
    state.draft.image = values["image"]
    if not isinstance(values["image"], str):
        raise TypeError
    if state.depends_on_host("image", state.draft.image):
        raise UsageError(f"{state.path.name}: the image depends on variables of the host")


def _read_build(
    dockerfile: str, context: str, build: Mapping[str, Any], state: _ReaderState
) -> None:
    """Read the Dockerfile, whose paths are relative to ``context``."""
    path = _locate_file(dockerfile, state)
    root = _locate_file(context, state)
    arguments: dict[str, str] = {}
    for name, value in dict(build.get("args") or {}).items():
        if not state.depends_on_host(f"build.args.{name}", str(value)):
            arguments[name] = str(value)
    try:
        if not path.is_file():
            raise UsageError(f"{state.path.name}: {dockerfile} not found")
        read_dockerfile(
            path,
            state.project,
            state.draft,
            context=root.relative_to(state.project).as_posix(),
            arguments=arguments,
            target=str(build.get("target") or ""),
        )
    except UnicodeDecodeError as error:
        raise UsageError(f"{dockerfile} is not UTF-8 text: {error.reason}") from error
    for key in build.keys() - {"dockerfile", "context", "args", "target"}:
        state.skip(f"build.{key}", build[key], "use --cache-from" if key == "cacheFrom" else "")


def _locate_file(name: str, state: _ReaderState) -> Path:
    path = (state.path.parent / name).resolve()
    if not path.is_relative_to(state.project):
        raise UsageError(
            f"{state.path.name}: {name} is outside the project {state.project}",
            hint="copy it into the project: a build file cannot use files outside",
        )
    return path


# -- settings


def _read_ports(key: str, value: list[Any], state: _ReaderState) -> None:
    labels = state.values.get("portsAttributes") or {}
    for port in value if isinstance(value, list) else [value]:
        match = re.fullmatch(r"(?:(?:localhost|127\.0\.0\.1):)?(\d+)", str(port))
        pair = re.fullmatch(r"(\d+):(\d+)", str(port)) if key == "appPort" else None
        if match is None and pair is None:
            state.skip(key, port, "a port of another host")
            continue
        arguments = [int(match[1])] if match else [int(number) for number in str(port).split(":")]
        arguments.reverse()  # Docker names the host's port first
        exposed = {
            call.arguments[0] for call in state.draft.calls if call.function == "runtime.expose"
        }
        if arguments[0] in exposed:
            continue
        label = str((labels.get(str(arguments[0])) or {}).get("label") or "")
        named = (("service", label),) if label else ()
        state.draft.calls.append(DraftCall("runtime.expose", tuple(arguments), named))


def _read_port_attributes(key: str, value: Mapping[str, Any], state: _ReaderState) -> None:
    for port, attributes in value.items():
        others = {name: text for name, text in attributes.items() if name != "label"}
        if others:
            state.skip(f"{key}.{port}", others, "editors decide this")


def _read_environment(key: str, value: Mapping[str, Any], state: _ReaderState) -> None:
    for name, item in value.items():
        # JavaScript writes other numbers differently.
        text = item if isinstance(item, str) else json.dumps(item).removesuffix(".0")
        path = text.removesuffix(":${containerEnv:PATH}")
        if not name.isidentifier():
            state.skip(f"{key}.{name}", text, "not the name of a variable")
        elif not isinstance(item, str | bool) and not _NUMBER.fullmatch(text):
            state.skip(f"{key}.{name}", text, "write it as text")
        elif f"{key}.{name}" == "remoteEnv.PATH" and path != text:
            if path and not state.depends_on_host(f"{key}.{name}", path):
                state.draft.extra_path = [*path.split(":"), *state.draft.extra_path]
        elif not state.depends_on_host(f"{key}.{name}", text):
            state.draft.environment[name] = text


def _read_customizations(key: str, value: Mapping[str, Any], state: _ReaderState) -> None:
    for tool, settings in value.items():
        if tool != "vscode":
            state.skip(f"{key}.{tool}", settings)
            continue
        for name, content in settings.items():
            if name == "extensions":
                _read_extensions(f"{key}.vscode.extensions", content, state)
            else:
                state.skip(f"{key}.vscode.{name}", content, "put it in .vscode/settings.json")


def _read_extensions(key: str, value: list[Any], state: _ReaderState) -> None:
    names = []
    if not isinstance(value, list):
        raise TypeError
    for name in map(str, value):
        if name.startswith("-"):
            state.skip(key, name, "extensions are not inherited")
        elif not state.depends_on_host(key, name):
            names.append(name)
    if names:
        state.draft.calls.append(DraftCall("install.vscode_extensions", (names,)))


def _read_requirements(key: str, value: Mapping[str, Any], state: _ReaderState) -> None:
    for name, needed in value.items():
        if name == "gpu" and needed is True:
            state.draft.calls.append(DraftCall("config.gpu", (1,)))
        else:
            state.skip(f"{key}.{name}", needed, "options of `danlu up` limit resources")


# -- commands

#: Commands in the order in which they run, and whether they run only after the creation.
_COMMAND_KEYS = {
    "onCreateCommand": True,
    "updateContentCommand": True,
    "postCreateCommand": True,
    "postStartCommand": False,
}


def _read_command(key: str, value: object, state: _ReaderState) -> None:
    """Turn installations into declarations, and other commands into ``runtime.init``.

    The commands work in the project, which can be written when the environment runs. A file in its
    home directory marks those that ran after the creation.
    """
    draft = state.draft
    for number, script in enumerate(_list_commands(key, value, state), 1):
        installed = read_script(script) if _COMMAND_KEYS[key] else None
        if installed is not None:
            draft.system += installed.system
            draft.packages += installed.packages
            draft.requirements += [
                name.removeprefix(f"{PROJECT}/") for name in installed.requirements
            ]
            if installed.system and installed.recommends:
                state.skip(key, script, "packages that are only recommended are not installed")
        elif _COMMAND_KEYS[key]:
            mark = f"~/.{key}-{number}"
            command = f"[ -e {mark} ] || (\n{script}\n) && mkdir -p ~ && touch {mark}"
            draft.calls.append(DraftCall("runtime.init", ([command],)))
        else:
            draft.calls.append(DraftCall("runtime.init", ([script],)))


def _list_commands(key: str, value: object, state: _ReaderState) -> Iterator[str]:
    if isinstance(value, dict):
        for name, command in value.items():
            yield from _list_commands(f"{key}.{name}", command, state)
    elif isinstance(value, list) and all(isinstance(word, str) for word in value):
        if value and not state.depends_on_host(key, " ".join(value)):
            yield shlex.join(value)
    elif isinstance(value, str):
        if value.strip() and not state.depends_on_host(key, value):
            yield value
    elif value is not None:
        raise UsageError(f"{state.path.name}: invalid command in {key}")


_READERS: dict[str, Callable[[str, Any, _ReaderState], None]] = {
    "forwardPorts": _read_ports,
    "appPort": _read_ports,
    "portsAttributes": _read_port_attributes,
    "containerEnv": _read_environment,
    "remoteEnv": _read_environment,
    "customizations": _read_customizations,
    "extensions": _read_extensions,
    "hostRequirements": _read_requirements,
}
