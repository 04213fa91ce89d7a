"""``base``, ``shell`` and ``git_config``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from msgspec.structs import replace

from danlu.environment.types import BaseSystem, Declaration
from danlu.graph.image_config import ImageConfig
from danlu.graph.ops import FileEntry
from danlu.graph.processor_level import PROCESSOR_LEVELS
from danlu.lang.arg_types import FLAG, TEXT, CallError, choice
from danlu.lang.build_function import (
    DEFAULT_IMAGE,
    BoundCall,
    BuildFunction,
    EnvironmentBuilder,
    Parameter,
)
from danlu.lang.checks import check_image, declare_python
from danlu.lang.functions.julia import JuliaToolchain
from danlu.lang.functions.r import RLanguage
from danlu.util.suggest import suggest_name

SHELLS = ("bash", "zsh", "fish")

_KNOWN_OS = (
    "debian11", "debian12", "debian13",
    "ubuntu18.04", "ubuntu20.04", "ubuntu22.04", "ubuntu24.04", "ubuntu26.04",
)  # fmt: skip
_OS = re.compile(r"debian[1-9][0-9]|ubuntu[12][0-9]\.(04|10)")
_DISTRIBUTION = re.compile(r"(debian|ubuntu)[0-9][0-9.]*")
#: The distribution's file, which sets PATH, with what a new user of zsh needs.
_ZSHENV = """\
# Written by danlu for shell("zsh").
if [[ -z "$PATH" || "$PATH" == "/bin:/usr/bin" ]]; then
  export PATH="/usr/local/bin:/usr/bin:/bin:/usr/games"
fi
if [[ -o interactive ]]; then
  # Without startup files in the home directory, zsh would ask how to configure it.
  zsh-newuser-install() { :; }
  PS1='%n@%m:%~%# '
fi
"""
_LANGUAGE = re.compile(r"(python|r|julia)([0-9]+(?:\.[0-9]+)*)?")

#: What language v0 starts from if `language` is given without `os`.
_V0_OS = "ubuntu22.04"


class LoginShell(Declaration, frozen=True):
    """``shell(name)``."""

    rank: ClassVar[int] = 1  # after runtime.environ, whose SHELL it replaces

    name: Literal["bash", "zsh", "fish"]

    def system_packages(self) -> tuple[str, ...]:
        return () if self.name == "bash" else (self.name,)

    def config_files(self) -> tuple[FileEntry, ...]:
        return (FileEntry("/etc/zsh/zshenv", content=_ZSHENV),) if self.name == "zsh" else ()

    def configure(self, config: ImageConfig) -> ImageConfig:
        variables = {**dict(config.environment), "SHELL": f"/usr/bin/{self.name}"}
        return replace(config, environment=tuple(sorted(variables.items())))


class GitConfig(Declaration, frozen=True):
    """``git_config(name, email, editor)``; an empty value is not written."""

    rank: ClassVar[int] = 1  # the order of files is part of the layer's digest

    name: str = ""
    email: str = ""
    editor: str = ""

    def config_files(self) -> tuple[FileEntry, ...]:
        user = [("name", self.name), ("email", self.email)]
        lines = [f"\t{key} = {_quote_git_value(value)}" for key, value in user if value]
        text = "\n".join(["[user]", *lines]) + "\n" if lines else ""
        if self.editor:
            text += f"[core]\n\teditor = {_quote_git_value(self.editor)}\n"
        return (FileEntry("/etc/gitconfig", content=text),)


def _quote_git_value(value: str) -> str:
    # git-config(1), "Syntax": inside double quotes, \ and " are escaped.
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _map_base_positions(args: tuple[object, ...]) -> Mapping[str, object]:
    """Name ``base``'s positional arguments: v1 has ``image, dev``, v0 ``os, language, image``."""
    if len(args) > 3:
        raise CallError("base() takes at most 3 positional arguments", argument=3)
    first = args[0] if args else None
    is_v0 = isinstance(first, str) and _DISTRIBUTION.fullmatch(first) is not None
    if len(args) > 1 and isinstance(args[1], str):
        is_v0 = True
    names = ("os", "language", "image") if is_v0 else ("image", "dev")
    if len(args) > len(names):
        raise CallError("base() takes at most 2 positional arguments: image, dev", argument=2)
    return dict(zip(names, args, strict=False))


def _declare_base(env: EnvironmentBuilder, call: BoundCall) -> None:
    os, image, language = call["os"], call["image"], call["language"]
    given_image = "image" in call.given and image
    if os and given_image:
        raise CallError("base() is given both os and image", hint="keep one", argument="image")
    if os and not _OS.fullmatch(os):
        raise CallError(
            f"base(): unknown distribution '{os}'",
            hint=suggest_name(os, _KNOWN_OS, what="known distributions"),
            argument="os",
        )
    if language and not os and not given_image:
        os = _V0_OS
    dev = call["dev"] if call["dev"] is not None else bool(language and not given_image)
    chosen = "" if os else (image or DEFAULT_IMAGE)
    check_image(chosen, "base")
    env.declare_once(
        "base",
        BaseSystem(
            os=os,
            image=chosen,
            dev=dev,
            language=language,
            variant=call["variant"] or "",
            span=call.span,
        ),
    )
    if language:
        _declare_language(env, language, call)


def _declare_language(env: EnvironmentBuilder, language: str, call: BoundCall) -> None:
    match = _LANGUAGE.fullmatch(language)
    if match is None:
        raise CallError(
            f"base(): unknown language '{language}'",
            hint="use python, r or julia, optionally with a version: python3.11",
            argument="language",
        )
    name, version = match[1], match[2] or ""
    if name == "python":
        version = "" if version == "3" else version
        declare_python(env, version, call.span, function="base", argument="language")
    elif name == "r":
        env.declare_once("install.r_lang", RLanguage(span=call.span))
    else:
        env.declare_once("install.julia", JuliaToolchain(span=call.span))


def _declare_shell(env: EnvironmentBuilder, call: BoundCall) -> None:
    env.declare_once("shell", LoginShell(call["name"], span=call.span))


def _declare_git_config(env: EnvironmentBuilder, call: BoundCall) -> None:
    config = GitConfig(call["name"], call["email"], call["editor"], span=call.span)
    env.declare_once("git_config", config)


FUNCTIONS = (
    BuildFunction(
        "base",
        "Set the base of the environment: a distribution (`os`) or an image. The default is the "
        f"image `{DEFAULT_IMAGE}`.",
        (
            Parameter(
                "image",
                TEXT,
                "an image based on Debian or Ubuntu; not together with `os`",
                DEFAULT_IMAGE,
            ),
            Parameter(
                "dev",
                FLAG,
                "add tools for working in the environment: ssh, git, an editor, and the user "
                "`envd`, who may use sudo. The default is False, or True if `language` is given "
                "(language v0)",
                None,
            ),
            Parameter(
                "os",
                TEXT,
                "a distribution and its version, such as `debian12` or `ubuntu22.04`",
                "",
                keyword_only=True,
            ),
            Parameter(
                "language",
                TEXT,
                "language v0: `python3.8`, `r` or `julia`, as installed by `install.*`",
                "",
                keyword_only=True,
            ),
            Parameter(
                "variant",
                choice(PROCESSOR_LEVELS),
                "the level of x86-64 processors that programs of the image may need; danlu refuses "
                "to start it on others. Images for other architectures have none",
                None,
                keyword_only=True,
            ),
        ),
        declare=_declare_base,
        unique=True,
        example='base(os="debian12", dev=True)',
        positional_mapper=_map_base_positions,
    ),
    BuildFunction(
        "shell",
        "Set the login shell of the environment's user. zsh gets a prompt, and no questions at its "
        "first start.",
        (Parameter("name", choice(SHELLS), "the shell", "bash"),),
        declare=_declare_shell,
        unique=True,
        example='shell("zsh")',
    ),
    BuildFunction(
        "git_config",
        "Write the user's git configuration.",
        (
            Parameter("name", TEXT, "`user.name`", ""),
            Parameter("email", TEXT, "`user.email`", ""),
            Parameter("editor", TEXT, "`core.editor`", ""),
        ),
        declare=_declare_git_config,
        unique=True,
        example='git_config(name="Ada", email="ada@example.org", editor="vim")',
    ),
)
