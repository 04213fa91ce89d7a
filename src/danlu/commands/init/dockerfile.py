"""A ``Dockerfile`` as a draft: what has an equivalent becomes one, the rest stays as comments."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from danlu.commands.init.draft import Call, Draft
from danlu.commands.init.shell import Installed, read_script
from danlu.errors import UsageError

__all__ = ["read_dockerfile"]

_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")

#: Said by the base or decided when an environment starts: nothing is lost without them.
_SILENT = {"LABEL", "MAINTAINER", "STOPSIGNAL"}


@dataclass
class _Stage:
    """What is known while the last stage is read."""

    draft: Draft
    values: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    copied: dict[str, str] = field(default_factory=dict)
    installed: Installed = field(default_factory=Installed)


def read_dockerfile(path: Path, draft: Draft) -> None:
    """Add what the last stage of ``path`` says; ``draft.image`` is its base."""
    stage = _Stage(draft)
    seen = False
    for instruction, text in _instructions(path.read_text(encoding="utf-8")):
        if instruction == "FROM":
            if seen:
                _another_stage(stage)
            seen = True
            draft.image = _base(_expanded(text, stage.values), draft)
        elif instruction == "ARG":
            name, _, value = text.partition("=")
            stage.values.setdefault(name.strip(), _expanded(value.strip("\"'"), stage.values))
        elif not seen:
            raise UsageError(f"{path.name} has {instruction} before FROM")
        else:
            _instruction(instruction, text, stage)
    if not seen:
        raise UsageError(f"{path.name} has no FROM")
    _finish(stage)


def _another_stage(stage: _Stage) -> None:
    """Only the last stage is the image; what earlier ones did is said in a note."""
    draft = stage.draft
    note = "only the last stage of the Dockerfile was read"
    if note not in draft.notes:
        draft.notes.append(note)
    draft.steps, draft.left = [], []
    draft.environment, draft.extra_path, draft.calls = {}, [], []
    stage.directory, stage.copied, stage.installed = "/", {}, Installed()


def _base(text: str, draft: Draft) -> str:
    words = [one for one in text.split() if not one.startswith("--")]
    image = words[0] if words else ""
    if image == "scratch" or not image:
        raise UsageError("an image from scratch has no base that danlu could build on")
    if "$" in image:
        draft.notes.append(f"the base {image} depends on a build argument without a default")
    return image


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Instructions with their continued lines joined and here-documents taken in."""
    lines = iter(text.splitlines())
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        whole = line.strip()
        while whole.endswith("\\"):
            following = next(lines, "")
            if following.lstrip().startswith("#"):
                whole = whole[:-1].rstrip() + " \\"
                continue
            whole = whole[:-1].rstrip() + " " + following.strip()
        name, _, rest = whole.partition(" ")
        document = re.search(r"<<-?\s*[\"']?(\w+)[\"']?\s*$", rest)
        if document and name.upper() in ("RUN", "COPY"):
            body = "\n".join(_document(lines, document[1]))
            rest = body if name.upper() == "RUN" else f"{rest}\n{body}"
        yield name.upper(), rest.strip()


def _document(lines: Iterator[str], end: str) -> Iterator[str]:
    """The lines of a here-document."""
    for line in lines:
        if line.strip() == end:
            return
        yield line


def _expanded(text: str, values: Mapping[str, str]) -> str:
    """``text`` with known variables filled in; unknown ones stay as they are."""

    def value(match: re.Match[str]) -> str:
        return values.get(match[1] or match[3], match[2] if match[2] is not None else match[0])

    return _VARIABLE.sub(value, text)


def _instruction(name: str, text: str, stage: _Stage) -> None:
    draft = stage.draft
    if name == "RUN":
        _run(text, stage)
    elif name in ("COPY", "ADD"):
        _copy(name, text, stage)
    elif name == "ENV":
        _env(text, stage)
    elif name == "WORKDIR":
        stage.directory = posixpath.join(
            stage.directory, _expanded(text.strip("\"'"), stage.values)
        )
        draft.left.append(f"WORKDIR {text}  (programs start in the project, at /workspace)")
    elif name == "ENTRYPOINT":
        _entrypoint(text, draft)
    elif name == "USER" and re.fullmatch(r"\d+:\d+", text):
        uid, _, gid = text.partition(":")
        draft.left.append(f"USER {text}  (config.owner({uid}, {gid}) says it)")
    elif name not in _SILENT:
        draft.left.append(f"{name} {text}")


def _run(text: str, stage: _Stage) -> None:
    if text.startswith("["):
        try:
            text = shlex.join(json.loads(text))
        except (ValueError, TypeError):
            stage.draft.left.append(f"RUN {text}")
            return
    mounts = re.match(r"^((?:--\w+(?:=\S+)?\s+)*)(.*)$", text, re.DOTALL)
    assert mounts is not None
    for mount, argument in (("type=secret", "secrets=…"), ("type=ssh", "ssh=True")):
        if mount in mounts[1]:
            stage.draft.notes.append(f"a RUN has a mount of {mount}: run(…, {argument}) does that")
    # Arguments are values of the build and known here; the environment's the shell knows itself.
    commands = read_script(_expanded(mounts[2], stage.values), stage.installed)
    if commands:
        if stage.directory != "/":
            commands = [f"cd {shlex.quote(stage.directory)}", *commands]
        stage.draft.steps.append(Call("run", named=(("commands", commands),)))


def _copy(name: str, text: str, stage: _Stage) -> None:
    draft = stage.draft
    try:
        words = json.loads(text) if text.startswith("[") else shlex.split(text)
    except ValueError:
        words = []
    flags = [one for one in words if one.startswith("--")]
    words = [_expanded(one, stage.values) for one in words if not one.startswith("--")]
    image = next((one.partition("=")[2] for one in flags if one.startswith("--from=")), "")
    if len(words) < 2 or "\n" in text or (image and "/" not in image and ":" not in image):
        draft.left.append(f"{name} {text}")
        return
    *sources, target = words
    place = posixpath.normpath(posixpath.join(stage.directory, target))
    for source in sources:
        if name == "ADD" and "://" in source:
            draft.left.append(f"ADD {source} {target}  (io.http downloads to a place of its own)")
            continue
        into = target.endswith("/") or target in (".", "./") or len(sources) > 1
        end = posixpath.join(place, posixpath.basename(source.rstrip("/"))) if into else place
        if source.rstrip("/") in (".", "") or any(one in source for one in "*?["):
            end = place
        stage.copied[end] = source
        image_named = (("image", image),) if image else ()
        shown = place + "/" if into and place != "/" else place
        draft.steps.append(Call("io.copy", (source, shown), image_named))


def _env(text: str, stage: _Stage) -> None:
    draft = stage.draft
    first = text.split(None, 1) or [""]
    try:
        if "=" in first[0]:
            pairs = [one.partition("=")[::2] for one in shlex.split(text)]
        else:
            pairs = [(first[0], first[1] if len(first) > 1 else "")]
    except ValueError:
        draft.left.append(f"ENV {text}")
        return
    for name, raw in pairs:
        if not name:
            draft.left.append(f"ENV {text}")
            continue
        value = _expanded(raw, {**stage.values, **draft.environment})
        if name == "PATH" and re.search(r"\$\{?PATH", raw):
            parts = [one for one in value.split(":") if "$" not in one and one]
            draft.extra_path += parts
        elif "$" in value:
            draft.left.append(f"ENV {name}={raw}")
        else:
            draft.environment[name] = value


def _entrypoint(text: str, draft: Draft) -> None:
    try:
        words = json.loads(text) if text.startswith("[") else ["/bin/sh", "-c", text]
    except ValueError:
        words = []
    if not words:
        draft.left.append(f"ENTRYPOINT {text}")
        return
    draft.calls = [one for one in draft.calls if one.function != "config.entrypoint"]
    draft.calls.append(Call("config.entrypoint", ([str(one) for one in words],)))


def _finish(stage: _Stage) -> None:
    """Put what was installed where it is declared, and drop copies that only served pip."""
    draft, installed = stage.draft, stage.installed
    draft.packages += installed.packages
    draft.pip_index = installed.index
    draft.left += installed.left
    used: set[str] = set()
    for path in installed.requirements:
        end = posixpath.normpath(posixpath.join(stage.directory, path))
        source = stage.copied.get(end) or _within(end, stage.copied) or path
        used.add(source)
        draft.requirements.append(source)
    draft.steps = [
        one for one in draft.steps if one.function != "io.copy" or one.arguments[0] not in used
    ]
    pythons = {"python3", "python3-pip", "python3-venv", "python-is-python3", "python3-minimal"}
    names = [one for one in installed.system if one not in pythons]
    draft.wants_python = len(names) < len(installed.system)
    draft.system += names


def _within(path: str, copied: Mapping[str, str]) -> str:
    """The project's file that lies at ``path`` because a directory above it was copied."""
    for end, source in copied.items():
        if path.startswith(end.rstrip("/") + "/"):
            rest = path[len(end.rstrip("/")) + 1 :]
            return rest if source.rstrip("/") in (".", "") else posixpath.join(source, rest)
    return ""
