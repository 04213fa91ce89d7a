"""Read a ``Dockerfile`` into a draft; instructions without an equivalent become comments."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from danlu.commands.init.draft import BuildFileDraft, DraftCall
from danlu.errors import UsageError

_VARIABLE_PATTERN = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")

#: Instructions that do not affect what runs in an environment.
_IGNORED_INSTRUCTIONS = {"LABEL", "MAINTAINER", "STOPSIGNAL"}


_PIP_FLAGS = {
    "--no-cache-dir", "--upgrade", "-U", "-q", "--quiet", "--user", "--pre", "-y", "--no-input",
    "--disable-pip-version-check", "--break-system-packages", "--root-user-action=ignore",
    "--no-cache", "--system", "--prefer-binary", "--only-binary=:all:",
}  # fmt: skip

_PIP_VALUE_FLAGS = {
    "-i",
    "--index-url",
    "--extra-index-url",
    "-f",
    "--find-links",
    "--trusted-host",
}

_APT_VALUE_FLAGS = {"-o", "-t", "--target-release"}

_CLEANUP_PATTERN = re.compile(
    r"^(apt(-get)?\s+(-\S+\s+)*(update|clean|autoclean|autoremove|upgrade|dist-upgrade)\b"
    r"|rm\s+(-\w+\s+)*(/var/lib/apt|/var/cache/apt|/root/\.cache|~/\.cache)"
    r"|pip3?\s+cache\s+purge|set\s+-\w+|true$|(python3?\s+-m\s+)?pip3?\s+install\s+"
    r"(-\S+\s+)*(pip|setuptools|wheel)(\s+(pip|setuptools|wheel))*$)"
)


@dataclass
class InstalledPackages:
    """What the commands of a Dockerfile install, in order."""

    system: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    requirements: list[str] = field(default_factory=list)
    index: str = ""
    untranslated: list[str] = field(default_factory=list)


@dataclass
class _StageState:
    """The state of the current stage."""

    draft: BuildFileDraft
    values: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    copied: dict[str, str] = field(default_factory=dict)
    installed: InstalledPackages = field(default_factory=InstalledPackages)


def read_dockerfile(
    path: Path,
    draft: BuildFileDraft,
    *,
    arguments: Mapping[str, str] = MappingProxyType({}),
    target: str = "",
) -> None:
    """Add the stage ``target`` (default: the last) of ``path``; its base becomes ``draft.image``.

    ``arguments`` are values of build arguments. Raises :class:`UsageError` for an invalid file.
    """
    stage = _StageState(draft, dict(arguments))
    seen, name = False, ""
    for instruction, text in _split_instructions(path.read_text(encoding="utf-8")):
        if instruction == "FROM":
            if seen and name and name == target.lower():
                break
            if seen:
                _discard_stage(stage)
            seen = True
            named = re.search(r"\sas\s+(\S+)\s*$", text, re.IGNORECASE)
            name = named[1].lower() if named else ""
            draft.image = _parse_from(_expand_variables(text, stage.values), draft)
        elif instruction == "ARG":
            argument, _, value = text.partition("=")
            stage.values.setdefault(
                argument.strip(), _expand_variables(value.strip("\"'"), stage.values)
            )
        elif not seen:
            raise UsageError(f"{path.name} has {instruction} before FROM")
        else:
            _translate_instruction(instruction, text, stage)
    if not seen:
        raise UsageError(f"{path.name} has no FROM")
    if target and name != target.lower():
        raise UsageError(f"{path.name} has no stage {target!r}")
    _finish_stage(stage)


def _discard_stage(stage: _StageState) -> None:
    """Discard the previous stage: only the last one becomes the image."""
    draft = stage.draft
    note = "only the last stage of the Dockerfile was read"
    if note not in draft.notes:
        draft.notes.append(note)
    draft.steps, draft.untranslated = [], []
    draft.environment, draft.extra_path, draft.calls = {}, [], []
    stage.directory, stage.copied, stage.installed = "/", {}, InstalledPackages()


def _parse_from(text: str, draft: BuildFileDraft) -> str:
    words = [word for word in text.split() if not word.startswith("--")]
    image = words[0] if words else ""
    if image == "scratch" or not image:
        raise UsageError("FROM scratch is not supported: an environment needs a base image")
    if "$" in image:
        draft.notes.append(f"the base image {image} depends on a build argument without a default")
    return image


def _split_instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield instructions and their arguments, with continued lines and here-documents joined."""
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
            body = "\n".join(_read_heredoc(lines, document[1]))
            rest = body if name.upper() == "RUN" else f"{rest}\n{body}"
        yield name.upper(), rest.strip()


def _read_heredoc(lines: Iterator[str], end: str) -> Iterator[str]:
    """Yield the lines of a here-document."""
    for line in lines:
        if line.strip() == end:
            return
        yield line


def _expand_variables(text: str, values: Mapping[str, str]) -> str:
    """Expand known variables in ``text``; unknown ones are kept."""

    def value(match: re.Match[str]) -> str:
        return values.get(match[1] or match[3], match[2] if match[2] is not None else match[0])

    return _VARIABLE_PATTERN.sub(value, text)


def _translate_instruction(name: str, text: str, stage: _StageState) -> None:
    draft = stage.draft
    if name == "RUN":
        _translate_run(text, stage)
    elif name in ("COPY", "ADD"):
        _translate_copy(name, text, stage)
    elif name == "ENV":
        _translate_env(text, stage)
    elif name == "WORKDIR":
        stage.directory = posixpath.join(
            stage.directory, _expand_variables(text.strip("\"'"), stage.values)
        )
        draft.untranslated.append(f"WORKDIR {text}  (commands start in the project, at /workspace)")
    elif name == "ENTRYPOINT":
        _translate_entrypoint(text, draft)
    elif name == "USER" and re.fullmatch(r"\d+:\d+", text):
        uid, _, gid = text.partition(":")
        draft.untranslated.append(f"USER {text}  (use config.owner({uid}, {gid}))")
    elif name not in _IGNORED_INSTRUCTIONS:
        draft.untranslated.append(f"{name} {text}")


def _translate_run(text: str, stage: _StageState) -> None:
    if text.startswith("["):
        try:
            text = shlex.join(json.loads(text))
        except (ValueError, TypeError):
            stage.draft.untranslated.append(f"RUN {text}")
            return
    mounts = re.match(r"^((?:--\w+(?:=\S+)?\s+)*)(.*)$", text, re.DOTALL)
    assert mounts is not None
    for mount, argument in (("type=secret", "secrets=…"), ("type=ssh", "ssh=True")):
        if mount in mounts[1]:
            stage.draft.notes.append(
                f"a RUN instruction uses a mount of {mount}: use run(…, {argument})"
            )
    # Build arguments are known here; the shell expands variables of the environment itself.
    commands = read_script(_expand_variables(mounts[2], stage.values), stage.installed)
    if commands:
        if stage.directory != "/":
            commands = [f"cd {shlex.quote(stage.directory)}", *commands]
        stage.draft.steps.append(DraftCall("run", keywords=(("commands", commands),)))


def _translate_copy(name: str, text: str, stage: _StageState) -> None:
    draft = stage.draft
    try:
        words = json.loads(text) if text.startswith("[") else shlex.split(text)
    except ValueError:
        words = []
    flags = [word for word in words if word.startswith("--")]
    words = [_expand_variables(word, stage.values) for word in words if not word.startswith("--")]
    image = next((flag.partition("=")[2] for flag in flags if flag.startswith("--from=")), "")
    if len(words) < 2 or "\n" in text or (image and "/" not in image and ":" not in image):
        draft.untranslated.append(f"{name} {text}")
        return
    *sources, target = words
    place = posixpath.normpath(posixpath.join(stage.directory, target))
    for source in sources:
        if name == "ADD" and "://" in source:
            draft.untranslated.append(f"ADD {source} {target}  (use io.http to download files)")
            continue
        into = target.endswith("/") or target in (".", "./") or len(sources) > 1
        end = posixpath.join(place, posixpath.basename(source.rstrip("/"))) if into else place
        if source.rstrip("/") in (".", "") or any(character in source for character in "*?["):
            end = place
        stage.copied[end] = source
        image_named = (("image", image),) if image else ()
        shown = place + "/" if into and place != "/" else place
        draft.steps.append(DraftCall("io.copy", (source, shown), image_named))


def _translate_env(text: str, stage: _StageState) -> None:
    draft = stage.draft
    first = text.split(None, 1) or [""]
    try:
        if "=" in first[0]:
            pairs = [pair.partition("=")[::2] for pair in shlex.split(text)]
        else:
            pairs = [(first[0], first[1] if len(first) > 1 else "")]
    except ValueError:
        draft.untranslated.append(f"ENV {text}")
        return
    for name, raw in pairs:
        if not name:
            draft.untranslated.append(f"ENV {text}")
            continue
        value = _expand_variables(raw, {**stage.values, **draft.environment})
        if name == "PATH" and re.search(r"\$\{?PATH", raw):
            parts = [part for part in value.split(":") if "$" not in part and part]
            draft.extra_path += parts
        elif "$" in value:
            draft.untranslated.append(f"ENV {name}={raw}")
        else:
            draft.environment[name] = value


def _translate_entrypoint(text: str, draft: BuildFileDraft) -> None:
    try:
        words = json.loads(text) if text.startswith("[") else ["/bin/sh", "-c", text]
    except ValueError:
        words = []
    if not words:
        draft.untranslated.append(f"ENTRYPOINT {text}")
        return
    draft.calls = [call for call in draft.calls if call.function != "config.entrypoint"]
    draft.calls.append(DraftCall("config.entrypoint", ([str(word) for word in words],)))


def _finish_stage(stage: _StageState) -> None:
    """Turn installed packages into declarations, and drop copies that only pip needed."""
    draft, installed = stage.draft, stage.installed
    draft.packages += installed.packages
    draft.pip_index = installed.index
    draft.untranslated += installed.untranslated
    used: set[str] = set()
    for path in installed.requirements:
        end = posixpath.normpath(posixpath.join(stage.directory, path))
        source = stage.copied.get(end) or _find_copied_source(end, stage.copied) or path
        used.add(source)
        draft.requirements.append(source)
    draft.steps = [
        step for step in draft.steps if step.function != "io.copy" or step.arguments[0] not in used
    ]
    pythons = {"python3", "python3-pip", "python3-venv", "python-is-python3", "python3-minimal"}
    names = [package for package in installed.system if package not in pythons]
    draft.wants_python = len(names) < len(installed.system)
    draft.system += names


def _find_copied_source(path: str, copied: Mapping[str, str]) -> str:
    """Return the project's file that ``path`` was copied from as part of a directory."""
    for end, source in copied.items():
        if path.startswith(end.rstrip("/") + "/"):
            rest = path[len(end.rstrip("/")) + 1 :]
            return rest if source.rstrip("/") in (".", "") else posixpath.join(source, rest)
    return ""


# -- shell commands


def read_script(script: str, installed: InstalledPackages) -> list[str]:
    """Add what ``script`` installs to ``installed``; return the remaining commands."""
    remaining = []
    for command in _split_commands(script):
        plain = re.sub(r"^(?:[A-Z_]+=\S+\s+|sudo\s+)+", "", command)
        if _CLEANUP_PATTERN.match(plain):
            continue
        if not _parse_apt_install(plain, installed) and not _parse_pip_install(plain, installed):
            remaining.append(command)
    return remaining


def _split_commands(script: str) -> list[str]:
    """Split a script at ``&&``, ``;`` and newlines; one with blocks or subshells stays whole."""
    if re.search(r"(?m)^\s*(if|for|while|case|function)\b|\|\||\{\s|<<|(?<!\d)>\s*\(", script):
        return [script.strip()] if script.strip() else []
    parts, current, quote = [], "", ""
    index = 0
    while index < len(script):
        character = script[index]
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "\\" and index + 1 < len(script):
            current += script[index : index + 2]
            index += 2
            continue
        elif character == "(":
            return [script.strip()]
        elif character in ";\n" or script.startswith("&&", index):
            parts.append(current)
            current = ""
            index += 2 if character == "&" else 1
            continue
        current += character
        index += 1
    return [part.strip() for part in [*parts, current] if part.strip()]


def _parse_apt_install(command: str, installed: InstalledPackages) -> bool:
    match = re.match(r"^apt(?:-get)?\s+((?:-\S+\s+)*)install\s+(.*)$", command, re.DOTALL)
    words = _split_words(match[2]) if match else None
    if words is None:
        return False
    names, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in _APT_VALUE_FLAGS:
            skip = True
        elif not word.startswith("-"):
            names.append(word)
    if any(re.search(r"[$*`|<>]|^[./]", name) for name in names):
        return False
    installed.system += names
    return True


def _parse_pip_install(command: str, installed: InstalledPackages) -> bool:
    match = re.match(
        r"^(?:uv\s+)?(?:\S*python3?\S*\s+-m\s+)?pip3?\s+install\s+(.*)$", command, re.DOTALL
    )
    words = _split_words(match[1]) if match else None
    if words is None or any(re.match(r"[|&<>`]|\d?>", word) for word in words):
        return False
    parsed = InstalledPackages()
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if word in _PIP_FLAGS:
            continue
        if word in ("-r", "--requirement") or name == "--requirement":
            parsed.requirements.append(value if equals else next(rest, ""))
        elif name in _PIP_VALUE_FLAGS:
            _add_pip_option(name, value if equals else next(rest, ""), parsed)
        elif word.startswith(("-", ".", "/")) or "$" in word:
            return False  # the whole command is kept
        else:
            parsed.packages.append(word)
    installed.packages += parsed.packages
    installed.requirements += parsed.requirements
    installed.index = parsed.index or installed.index
    installed.untranslated += parsed.untranslated
    return True


def _add_pip_option(name: str, value: str, parsed: InstalledPackages) -> None:
    if name in ("-i", "--index-url"):
        parsed.index = value
    elif name in ("--extra-index-url", "-f", "--find-links"):
        long = "--find-links" if name == "-f" else name
        parsed.packages.append(f"{long} {value}")
    else:
        parsed.untranslated.append(f"pip {name} {value}")


def _split_words(text: str) -> list[str] | None:
    try:
        return shlex.split(text)
    except ValueError:
        return None
