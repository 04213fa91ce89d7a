"""A loader of texts in memory, and evaluations of short files."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent

import pytest

from danlu.environment.types import Environment
from danlu.errors import BuildFileError
from danlu.lang.evaluation import build_environment, evaluate
from danlu.lang.protocol import EvaluationLimits
from danlu.lang.source_files import CachingLoader, RepositoryContent, SourceFiles

COMMIT = "c0ffee" + "0" * 34


class InMemoryLoader:
    """Files and repositories by name; records the loaded ones."""

    def __init__(
        self, files: Mapping[str, str], repositories: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self.files = files
        self.repositories = repositories or {}
        self.asked: list[str] = []

    def read(self, path: str) -> str:
        self.asked.append(path)
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def include(self, url: str, ref: str) -> RepositoryContent:
        self.asked.append(f"{url}@{ref}")
        return RepositoryContent(COMMIT, self.repositories[url])


def envd(text: str, function: str = "build", **repositories: str) -> Environment:
    """Evaluate a ``build.envd`` as a user does: in a child."""
    loader = InMemoryLoader(
        {"build.envd": dedent(text)},
        {
            f"https://example.org/{name}": {"lib.envd": dedent(body)}
            for name, body in repositories.items()
        },
    )
    return evaluate("build.envd", function, loader=loader)


def body(text: str) -> Environment:
    """Evaluate the body of a build function, in this process: quick, and without limits."""
    from danlu.lang.starlark import evaluate_starlark

    lines = "\n".join("    " + line for line in dedent(text).strip().split("\n"))
    sources = SourceFiles()
    loader = CachingLoader(InMemoryLoader({"build.envd": f"def build():\n{lines}\n"}), sources)
    outcome = evaluate_starlark("build.envd", "build", loader, EvaluationLimits())
    return build_environment(
        outcome, file="build.envd", function="build", sources=sources, limits=EvaluationLimits()
    )


def python(text: str, function: str = "build", **files: str) -> Environment:
    """Evaluate a ``build.py``; further files by their name without ``.py``."""
    texts = {f"{name}.py": dedent(content) for name, content in files.items()}
    return evaluate(
        "build.py", function, loader=InMemoryLoader({"build.py": dedent(text), **texts})
    )


def python_body(text: str) -> Environment:
    """Evaluate the body of a build function of a ``build.py``."""
    lines = "\n".join("    " + line for line in dedent(text).strip().split("\n"))
    names = "base, config, data, git_config, install, io, run, runtime, shell"
    return python(f"from danlu import {names}\ndef build():\n{lines}\n")


def finding(text: str, function: str = "build", **repositories: str) -> BuildFileError:
    """Return the error of a ``build.envd``."""
    with pytest.raises(BuildFileError) as caught:
        envd(text, function, **repositories)
    return caught.value


def get_marked_text(error: BuildFileError) -> str:
    """Return the piece of the source line that an error's span marks."""
    assert error.span is not None
    return error.source_line[error.span.column - 1 : error.span.end_column - 1]
