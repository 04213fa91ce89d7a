"""Split a ``Dockerfile`` into its stages, and expand variables as BuildKit does."""

from __future__ import annotations

import keyword
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from e2b_dockerfile_utils import (
    DockerfileInstruction,
    DockerfileSyntaxError,
    ShellLex,
    parse_dockerfile_ast,
)

from danlu.convert.draft import PLACEHOLDERS, BuildFileDraft
from danlu.errors import UsageError
from danlu.lang.functions import FUNCTIONS, NAMESPACES

_MAX_STAGES = 200
_FILE_INSTRUCTIONS = {"RUN", "COPY", "ADD"}
#: A placeholder for the PATH of the base image, which only the image knows.
BASE_PATH = "\U0010fffd"


class UnknownVariableError(Exception):
    """A variable that the Dockerfile does not set, but the base image may."""


@dataclass(frozen=True)
class DockerfileStage:
    """A stage: its instructions, and the image that it starts from unless it has a ``parent``."""

    index: int
    name: str
    image: str
    parent: DockerfileStage | None
    instructions: tuple[DockerfileInstruction, ...]

    def list_chain(self) -> list[DockerfileStage]:
        """Return the stages that this one consists of, from the one that starts from an image."""
        chain = [self]
        while chain[0].parent:
            chain.insert(0, chain[0].parent)
        return chain

    @property
    def title(self) -> str:
        """Its name, or its number."""
        return self.name or str(self.index)

    @property
    def changes_files(self) -> bool:
        """Whether it has other files than its image."""
        stages = self.list_chain()
        return any(
            item.name in _FILE_INSTRUCTIONS for stage in stages for item in stage.instructions
        )


class VariableScope:
    """The variables that instructions see: those of ``ENV``, and then build arguments.

    ``unset`` are build arguments without a value.
    """

    def __init__(self) -> None:
        self.environment = {"PATH": BASE_PATH}
        self.arguments: dict[str, str] = {}
        self.unset: set[str] = set()

    def get(self, name: str) -> str | None:
        """Return a value, or None for a variable that is certainly not set."""
        for values in (self.environment, self.arguments):
            if name in values:
                return values[name]
        if name not in self.unset and name.isidentifier():  # not $1, $$ or $@
            raise UnknownVariableError(name)
        return None


class Dockerfile:
    """A parsed Dockerfile: its ``stages`` in order, and the arguments before the first.

    ``arguments`` are values of build arguments. Arguments become parameters of ``draft``, in which
    everything is listed that has no equivalent. Raises :class:`UsageError` for an invalid file.
    """

    def __init__(self, path: Path, draft: BuildFileDraft, arguments: Mapping[str, str]) -> None:
        self._name = path.name
        self._draft = draft
        self._given = dict(arguments)
        text = path.read_bytes().decode()
        if re.search(f"[{PLACEHOLDERS}]", text):
            raise UsageError(f"{path.name} uses characters of Unicode's private plane 16")
        try:
            parsed = parse_dockerfile_ast(text)
        except DockerfileSyntaxError as error:
            raise UsageError(f"{path.name}: {error}") from error
        self._escape = parsed.escape_token
        self._fixed = _find_fixed_arguments(parsed.instructions)
        self.scope = VariableScope()
        self.scope.arguments = _list_platform_arguments()
        self.stages = self._split_stages(parsed.instructions)
        names = {
            word.partition("=")[0]
            for item in parsed.instructions
            if item.name == "ARG"
            for word in item.args
        }
        for name in sorted(arguments.keys() - names):
            draft.untranslated.append(f"build argument {name}  (not an ARG of {path.name})")

    def _split_stages(self, instructions: Sequence[DockerfileInstruction]) -> list[DockerfileStage]:
        stages: list[DockerfileStage] = []
        for number, item in enumerate(instructions):
            if item.name == "FROM":
                words = item.args
                if len(words) not in (1, 3) or (len(words) == 3 and words[1].lower() != "as"):
                    raise self.make_error(item, "FROM requires either one or three arguments")
                try:
                    base = self.expand(item, words[0], self.scope)
                except UnknownVariableError as unknown:
                    raise self.make_error(item, f"the image depends on ${unknown}") from unknown
                parent = _find_named_stage(stages, base)
                image = parent.image if parent else base
                own = []
                for other in instructions[number + 1 :]:
                    if other.name == "FROM":
                        break
                    own.append(other)
                name = words[2] if len(words) == 3 else ""
                stages.append(DockerfileStage(len(stages), name, image, parent, tuple(own)))
                if len(stages) > _MAX_STAGES:
                    raise UsageError(f"{self._name} has more than {_MAX_STAGES} stages")
                if any("BUILDPLATFORM" not in flag for flag in item.flags):
                    self.skip(item, "danlu lock --platform selects a platform")
            elif not stages and item.name != "ARG":
                raise self.make_error(item, f"{item.name} before FROM")
            elif not stages:
                self.declare_arguments(item, self.scope)
        if not stages:
            raise UsageError(f"{self._name} has no FROM")
        return stages

    def find_stage(self, reference: str, *, before: int | None = None) -> DockerfileStage | None:
        """Return the stage with that name or number, one of the first ``before`` ones."""
        stages = self.stages[:before]
        if reference.isdecimal():
            return stages[int(reference)] if int(reference) < len(stages) else None
        return _find_named_stage(stages, reference)

    def expand(
        self,
        item: DockerfileInstruction,
        text: str,
        scope: VariableScope,
        *,
        keep_quotes: bool = False,
    ) -> str:
        """Expand variables, and remove quotes; raise :class:`UnknownVariableError`."""
        variables = cast("Mapping[str, str]", scope)
        lexer = ShellLex(
            self._escape, env=variables, skip_unset_env=False, skip_process_quotes=keep_quotes
        )
        try:
            return lexer.process_word(text)
        except ValueError as error:
            raise self.make_error(item, str(error)) from error

    def make_error(self, item: DockerfileInstruction, reason: str) -> UsageError:
        """Return the error of an invalid instruction."""
        return UsageError(f"{self._name}, line {item.start_line}: {reason}")

    def skip(self, item: DockerfileInstruction, reason: str) -> None:
        """List an instruction that is not carried over, or not completely."""
        line = f"{item.original.strip()}  (line {item.start_line}: {reason})"
        if line not in self._draft.untranslated:
            self._draft.untranslated.append(line)

    def declare_arguments(self, item: DockerfileInstruction, scope: VariableScope) -> None:
        """Give the arguments of an ``ARG`` instruction their values in ``scope``.

        One with a value becomes a parameter of the build function, unless the value depends on
        another one, or instructions do more with it than to insert it.
        """
        for word in item.args:
            name, equals, text = word.partition("=")
            value = self._given.get(name)
            if value is None and equals:
                try:
                    value = self.expand(item, text, scope)
                except UnknownVariableError as unknown:
                    self.skip(item, f"the base image may set ${unknown}")
            elif value is None:
                value = self.scope.arguments.get(name)
            scope.arguments.pop(name, None)
            scope.unset.discard(name)
            if value is None:
                scope.unset.add(name)
                if not equals:
                    self.skip(item, f"{name} has no default, and is not set")
            elif re.fullmatch(f"[{PLACEHOLDERS}]", value) and not equals:
                scope.arguments[name] = value
            elif name in self._fixed or re.search(f"[{PLACEHOLDERS}]", value):
                scope.arguments[name] = value
                self.skip(item, f"the value of {name} cannot be set")
            else:
                scope.arguments[name] = self._draft.add_parameter(name, value)


def _find_named_stage(stages: Sequence[DockerfileStage], name: str) -> DockerfileStage | None:
    named = [stage for stage in stages if name and stage.name.lower() == name.lower()]
    return named[-1] if named else None


def _find_fixed_arguments(instructions: Sequence[DockerfileInstruction]) -> set[str]:
    """Return the names of arguments that cannot be parameters of a build function."""
    fixed = {*NAMESPACES, *FUNCTIONS, "build", "load", "print", "PATH"}
    defaults: dict[str, set[str]] = {}
    for item in instructions:
        if item.name != "RUN":
            fixed.update(re.findall(r"\$\{(\w+)[^\w}]", item.original))
        for word in item.args if item.name == "ARG" else ():
            name, equals, text = word.partition("=")
            if equals:
                defaults.setdefault(name, set()).add(text)
            if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
                fixed.add(name)
    return fixed | {name for name, values in defaults.items() if len(values) > 1}


def _list_platform_arguments() -> dict[str, str]:
    """Return the arguments that BuildKit sets itself, for this machine."""
    machine = platform.machine()
    processor = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    values = {"PLATFORM": f"linux/{processor}", "OS": "linux", "ARCH": processor, "VARIANT": ""}
    return {
        f"{side}{name}": value for side in ("TARGET", "BUILD") for name, value in values.items()
    }
