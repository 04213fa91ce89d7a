"""Read a ``Dockerfile`` into a draft; instructions without an equivalent become comments."""

from __future__ import annotations

import json
import keyword
import posixpath
import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from danlu.commands.init.dockerfile_stages import (
    DockerfileStage,
    ParsedDockerfile,
    expand_variables,
    parse_dockerfile,
)
from danlu.commands.init.draft import BuildFileDraft, DraftCall, DraftComment, DraftName
from danlu.errors import UsageError
from danlu.lang.functions import FUNCTIONS, NAMESPACES

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

_PIP_PREFIX_FLAGS = {"--prefix", "--target", "-t", "--root"}

#: Where packages of Python are, alone or with Python itself.
_PACKAGES_PATTERN = re.compile(
    r"/(site|dist)-packages/?$|^(/root|/home/\w+)/\.local/?$|/\.?(virtual|v)?envs?/?$"
    r"|^/usr/local(/lib(/python3?(\.\d+)?)?|/bin)?/?$"
)
#: Commands that prepare the installation of packages.
_SETUP_PATTERN = re.compile(
    r"(python3?|uv|/\S*python3?)(\s+-m)?\s+(virtual|v)env\s|virtualenv\s|cd\s|(\.|source)\s\S*activate"
)

#: A mount of files of the project or of another stage, which is the default.
_BIND_PATTERN = re.compile(r"--mount=(?!.*type=(?!bind))")

_APT_VALUE_FLAGS = {"-o", "-t", "--target-release"}

_CLEANUP_PATTERN = re.compile(
    r"^(apt(-get)?\s+(-\S+\s+)*(update|clean|autoclean|autoremove|upgrade|dist-upgrade)\b"
    r"|rm\s+(-\w+\s+)*(/var/lib/apt|/var/cache/apt|/root/\.cache|~/\.cache)"
    r"|pip3?\s+cache\s+purge|set\s+-\w+|true$|(python3?\s+-m\s+)?pip3?\s+install\s+"
    r"(-\S+\s+)*(pip|setuptools|wheel)(\s+(pip|setuptools|wheel))*$)"
)


@dataclass
class InstalledPackages:
    """What the commands of a Dockerfile install, in order.

    ``prefixes`` are directories in which pip installs something; unless ``takes_prefixes``, such
    commands are not understood.
    """

    system: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    requirements: list[str] = field(default_factory=list)
    index: str = ""
    untranslated: list[str] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    takes_prefixes: bool = False


@dataclass
class _TranslationState:
    """What was translated so far, of a stage and of those that it starts from.

    ``others`` are the stages that files were copied from, ``read`` the numbers of all that were
    read, and ``explained`` of those that a comment has shown. ``functions`` are the names of those
    that became build functions; None if files of a stage can only be named in a comment.
    """

    dockerfile: ParsedDockerfile
    stage: DockerfileStage
    draft: BuildFileDraft
    values: dict[str, str]
    directory: str = "/"
    copied: dict[str, str] = field(default_factory=dict)
    installed: InstalledPackages = field(default_factory=InstalledPackages)
    others: dict[int, _TranslationState] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)
    explained: set[int] = field(default_factory=set)
    functions: dict[int, str] | None = None
    main: BuildFileDraft = field(default_factory=BuildFileDraft)


def read_dockerfile(
    path: Path,
    draft: BuildFileDraft,
    *,
    arguments: Mapping[str, str] = MappingProxyType({}),
    target: str = "",
    with_functions: bool = True,
) -> None:
    """Add the stage ``target`` (default: the last) of ``path``; its image becomes ``draft.image``.

    The stages that it starts from are part of it. A stage that it copies files from becomes a build
    function; without ``with_functions`` a comment shows it. ``arguments`` are values of build
    arguments. Raises :class:`UsageError` for an invalid file.
    """
    dockerfile = parse_dockerfile(path, arguments)
    last = dockerfile.find_stage(target) if target else dockerfile.stages[-1]
    if last is None:
        raise UsageError(f"{path.name} has no stage {target!r}")
    if last.image in ("scratch", ""):
        raise UsageError("FROM scratch is not supported: an environment needs a base image")
    if "$" in last.image:
        draft.notes.append(
            f"the base image {last.image} depends on a build argument without a default"
        )
    draft.image = last.image
    start = _TranslationState(dockerfile, last, draft, dict(dockerfile.arguments), main=draft)
    start.functions = {} if with_functions else None
    state = _translate_stage(start)
    _finish_draft(state)
    others = [stage.title for stage in dockerfile.stages if stage.index not in state.read]
    if others and not target:
        draft.notes.append(
            f"stage {last.title} of the Dockerfile was read, which does not need the others:"
            f" {', '.join(others)}"
        )


def _translate_stage(state: _TranslationState) -> _TranslationState:
    """Translate the stage of a new state, after those that it starts from; return the state."""
    for part in state.stage.list_chain():
        state.stage = part
        state.read.add(part.index)
        for instruction, text in part.instructions:
            _translate_instruction(instruction, text, state)
    return state


def _translate_instruction(name: str, text: str, state: _TranslationState) -> None:
    draft = state.draft
    if name == "ARG":
        argument, _, value = text.partition("=")
        value = expand_variables(value.strip("\"'"), state.values)
        state.values.setdefault(argument.strip(), value)
    elif name == "RUN":
        _translate_run(text, state)
    elif name in ("COPY", "ADD"):
        _translate_copy(name, text, state)
    elif name == "ENV":
        _translate_env(text, state)
    elif name == "WORKDIR":
        state.directory = posixpath.join(
            state.directory, expand_variables(text.strip("\"'"), state.values)
        )
        draft.untranslated.append(f"WORKDIR {text}  (commands start in the project, at /workspace)")
    elif name == "ENTRYPOINT":
        _translate_entrypoint(text, draft)
    elif name == "USER" and re.fullmatch(r"\d+:\d+", text):
        uid, _, gid = text.partition(":")
        draft.untranslated.append(f"USER {text}  (use config.owner({uid}, {gid}))")
    elif name not in _IGNORED_INSTRUCTIONS:
        draft.untranslated.append(f"{name} {text}")


def _translate_run(text: str, state: _TranslationState) -> None:
    if text.startswith("["):
        try:
            text = shlex.join(json.loads(text))
        except (ValueError, TypeError):
            state.draft.untranslated.append(f"RUN {text}")
            return
    mounts = re.match(r"^((?:--\w+(?:=\S+)?\s+)*)(.*)$", text, re.DOTALL)
    assert mounts is not None
    for mount, argument in (("type=secret", "secrets=…"), ("type=ssh", "ssh=True")):
        if mount in mounts[1]:
            state.draft.notes.append(
                f"a RUN instruction uses a mount of {mount}: use run(…, {argument})"
            )
    # Build arguments are known here; the shell expands variables of the environment itself.
    known = len(state.installed.requirements)
    commands = read_script(expand_variables(mounts[2], state.values), state.installed)
    binds = [flag for flag in mounts[1].split() if _BIND_PATTERN.match(flag)]
    if commands and binds:
        comment = f"RUN {' '.join(binds)}: copy the files of the mount with io.copy(), or use the"
        state.draft.steps.append(DraftComment(f"{comment}\nproject with mount_host=True:"))
    for index, path in enumerate(state.installed.requirements[known:], known):
        end = posixpath.normpath(posixpath.join(state.directory, path))
        source = state.copied.get(end) or _find_copied_source(end, state.copied) or path
        state.installed.requirements[index] = source
    if commands:
        if state.directory != "/":
            commands = [f"cd {shlex.quote(state.directory)}", *commands]
        state.draft.steps.append(DraftCall("run", keywords=(("commands", commands),)))


def _translate_copy(name: str, text: str, state: _TranslationState) -> None:
    draft = state.draft
    try:
        words = json.loads(text) if text.startswith("[") else shlex.split(text)
    except ValueError:
        words = []
    flags = [word for word in words if word.startswith("--")]
    words = [expand_variables(word, state.values) for word in words if not word.startswith("--")]
    if len(words) < 2 or "\n" in text:
        draft.untranslated.append(f"{name} {text}")
        return
    *sources, target = words
    image = next((flag.partition("=")[2] for flag in flags if flag.startswith("--from=")), "")
    image = expand_variables(image, state.values)
    named: tuple[tuple[str, object], ...] = (("image", image),) if image else ()
    stage = state.dockerfile.find_stage(image, before=state.stage.index) if image else None
    if stage is not None:
        state.read.add(stage.index)
        if stage.changes_files or stage.image in ("scratch", ""):
            function = _translate_stage_copy(f"{name} {text}", sources, stage, state)
            if not function:
                return
            named = (("source", DraftName(function)),)
        else:
            named = (("image", stage.image),)
    place = posixpath.normpath(posixpath.join(state.directory, target))
    for source in sources:
        if name == "ADD" and "://" in source:
            draft.untranslated.append(f"ADD {source} {target}  (use io.http to download files)")
            continue
        into = target.endswith("/") or target in (".", "./") or len(sources) > 1
        end = posixpath.join(place, posixpath.basename(source.rstrip("/"))) if into else place
        if source.rstrip("/") in (".", "") or any(character in source for character in "*?["):
            end = place
        state.copied[end] = source
        shown = place + "/" if into and place != "/" else place
        draft.steps.append(DraftCall("io.copy", (source, shown), named))


def _translate_stage_copy(
    instruction: str, sources: Sequence[str], stage: DockerfileStage, state: _TranslationState
) -> str:
    """Declare the Python packages that files of another stage are, or make it a build function.

    Returns the function's name, empty if nothing has to be copied; a stage that cannot be one is
    shown in a comment.
    """
    other = state.others.get(stage.index)
    if other is None:
        other = _TranslationState(
            state.dockerfile, stage, BuildFileDraft(), dict(state.dockerfile.arguments)
        )
        # Where pip installs packages does not matter in a stage that files are copied from.
        other.installed.takes_prefixes = True
        other.others = state.others
        state.others[stage.index] = _translate_stage(other)
    state.read |= other.read
    installed = other.installed
    lines = [instruction]
    if (installed.packages or installed.requirements) and all(
        _PACKAGES_PATTERN.search(source) or source.rstrip("/") in installed.prefixes
        for source in sources
    ):
        state.installed.packages += installed.packages
        state.installed.requirements += installed.requirements
        state.installed.index = installed.index or state.installed.index
        state.installed.untranslated += installed.untranslated
        if all(_is_environment_setup(step) for step in other.draft.steps):
            return ""
        lines.append(f"The packages of stage {stage.title} are installed, not its other files:")
    elif (
        state.functions is not None
        and stage.image not in ("", "scratch")
        and ("$" not in stage.image)
    ):
        return _make_stage_function(stage, state, state.functions)
    else:
        lines.append(f"Files of stage {stage.title}, which is not part of this environment:")
    if stage.index in state.explained:
        lines = [instruction, f"Files of stage {stage.title}, see above."]
    else:
        state.explained.add(stage.index)
        lines.append(f"  FROM {stage.image}")
        lines += [
            textwrap.indent(f"{name} {text}", "  ")
            for part in stage.list_chain()
            for name, text in part.instructions
        ]
        lines.append("Make them here with run(), or copy them from an image: io.copy(image=…).")
    state.draft.steps.append(DraftComment("\n".join(lines)))
    state.draft.notes.append(
        f"`{instruction}` was not translated: stage {stage.title} is not part of the environment;"
        " see the comment in the build file"
    )
    return ""


def _make_stage_function(
    stage: DockerfileStage, state: _TranslationState, functions: dict[int, str]
) -> str:
    """Return the name of the build function of a stage, which is translated the first time."""
    if stage.index in functions:
        return functions[stage.index]
    name = re.sub(r"\W", "_", stage.name.lower(), flags=re.ASCII)
    taken = {*functions.values(), *NAMESPACES, *FUNCTIONS, "build", "load", "print"}
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_") or name in taken:
        name = f"stage_{stage.index}"
    functions[stage.index] = name
    own = _TranslationState(
        state.dockerfile,
        stage,
        BuildFileDraft(image=stage.image),
        dict(state.dockerfile.arguments),
        others=state.others,
        functions=functions,
        main=state.main,
    )
    _finish_draft(_translate_stage(own))
    state.read |= own.read
    state.main.functions[name] = own.draft
    state.main.notes += own.draft.notes
    return name


def _is_environment_setup(step: DraftCall | DraftComment) -> bool:
    """Return whether a step only prepares the installation of packages."""
    if isinstance(step, DraftComment):
        return False
    commands = dict(step.keywords).get("commands", [])
    assert isinstance(commands, list)
    return step.function != "run" or all(map(_SETUP_PATTERN.match, commands))


def _translate_env(text: str, state: _TranslationState) -> None:
    draft = state.draft
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
        value = expand_variables(raw, {**state.values, **draft.environment})
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


def _finish_draft(state: _TranslationState) -> None:
    """Turn installed packages into declarations, and drop copies that only pip needed."""
    draft, installed = state.draft, state.installed
    draft.packages += installed.packages
    draft.pip_index = installed.index
    draft.untranslated += installed.untranslated
    draft.requirements += installed.requirements
    draft.steps = [
        step
        for step in draft.steps
        if isinstance(step, DraftComment)
        or step.function != "io.copy"
        or step.keywords
        or step.arguments[0] not in installed.requirements
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
    place = r"(?:/\S*/)?" if installed.takes_prefixes else ""
    match = re.match(
        rf"^(?:uv\s+)?(?:\S*python3?\S*\s+-m\s+)?{place}pip3?\s+install\s+(.*)$", command, re.DOTALL
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
        if installed.takes_prefixes and name in _PIP_PREFIX_FLAGS:
            parsed.prefixes.append((value if equals else next(rest, "")).rstrip("/"))
        elif word in ("-r", "--requirement") or name == "--requirement":
            parsed.requirements.append(value if equals else next(rest, ""))
        elif name in _PIP_VALUE_FLAGS:
            _add_pip_option(name, value if equals else next(rest, ""), parsed)
        elif word.startswith(("-", ".", "/")) or "$" in word:
            return False  # the whole command is kept
        else:
            parsed.packages.append(word)
    installed.packages += parsed.packages
    installed.requirements += parsed.requirements
    installed.prefixes += parsed.prefixes
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
