"""Split a ``Dockerfile`` into its stages, each with the stage or image that it starts from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from danlu.errors import UsageError

_VARIABLE_PATTERN = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_MAX_STAGES = 200
_FILE_INSTRUCTIONS = {"RUN", "COPY", "ADD"}


@dataclass(frozen=True)
class DockerfileStage:
    """A stage: its instructions, and the image that it starts from unless it has a ``parent``."""

    index: int
    name: str
    image: str
    parent: DockerfileStage | None
    instructions: tuple[tuple[str, str], ...]

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
        return any(
            name in _FILE_INSTRUCTIONS
            for stage in self.list_chain()
            for name, _ in stage.instructions
        )


@dataclass(frozen=True)
class ParsedDockerfile:
    """The stages in order, and the values of the arguments before the first."""

    stages: tuple[DockerfileStage, ...]
    arguments: Mapping[str, str]

    def find_stage(self, reference: str, *, before: int | None = None) -> DockerfileStage | None:
        """Return the stage with that name or number, one of the first ``before`` ones."""
        stages = self.stages[:before]
        if reference.isdecimal():
            return stages[int(reference)] if int(reference) < len(stages) else None
        return _find_named_stage(stages, reference)


def parse_dockerfile(path: Path, arguments: Mapping[str, str]) -> ParsedDockerfile:
    """Read ``path``; ``arguments`` are values of build arguments.

    Raises :class:`UsageError` for an invalid file.
    """
    values = dict(arguments)
    stages: list[DockerfileStage] = []
    base, name, instructions = "", "", list[tuple[str, str]]()
    seen = False

    def add_stage() -> None:
        if seen:
            parent = _find_named_stage(stages, base)
            image = parent.image if parent else base
            stage = DockerfileStage(len(stages), name, image, parent, tuple(instructions))
            stages.append(stage)
            if len(stages) > _MAX_STAGES:
                raise UsageError(f"{path.name} has more than {_MAX_STAGES} stages")

    for instruction, text in _split_instructions(path.read_text(encoding="utf-8")):
        if instruction == "FROM":
            add_stage()
            words = [word for word in text.split() if not word.startswith("--")]
            base = expand_variables(words[0], values) if words else ""
            is_named = len(words) == 3 and words[1].lower() == "as"
            name = words[2] if is_named else ""
            instructions, seen = [], True
        elif seen:
            instructions.append((instruction, text))
        elif instruction == "ARG":
            argument, equals, value = text.partition("=")
            if equals:
                value = expand_variables(value.strip("\"'"), values)
                values.setdefault(argument.strip(), value)
        else:
            raise UsageError(f"{path.name} has {instruction} before FROM")
    if not seen:
        raise UsageError(f"{path.name} has no FROM")
    add_stage()
    return ParsedDockerfile(tuple(stages), values)


def _find_named_stage(stages: Sequence[DockerfileStage], name: str) -> DockerfileStage | None:
    named = [stage for stage in stages if name and stage.name.lower() == name.lower()]
    return named[-1] if named else None


def expand_variables(text: str, values: Mapping[str, str]) -> str:
    """Expand known variables in ``text``; unknown ones are kept."""

    def value(match: re.Match[str]) -> str:
        return values.get(match[1] or match[3], match[2] if match[2] is not None else match[0])

    return _VARIABLE_PATTERN.sub(value, text)


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
