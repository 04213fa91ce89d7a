"""Collect what the calls of a build file declare, then make an :class:`Environment` of it."""

from __future__ import annotations

from typing import TypeVar

from danlu.environment.types import (
    BaseSystem,
    Declaration,
    Environment,
    IncludeRef,
    Step,
)
from danlu.errors import Span
from danlu.lang.arg_types import CallError

DEFAULT_IMAGE = "ubuntu:22.04"
"""The base of a file that declares none."""

_D = TypeVar("_D", bound=Declaration)


class EnvironmentBuilder:
    """What was declared so far, in the order of the file; ``text`` is that of the build file."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._unique: dict[str, Declaration] = {}
        self._declarations: list[Declaration] = []
        self._steps: list[Step] = []
        self._includes: list[IncludeRef] = []
        self._python_requests: dict[str, tuple[str, Span]] = {}

    def declare(self, declaration: Declaration) -> None:
        """Add a declaration of which there may be several."""
        self._declarations.append(declaration)

    def declare_once(self, function: str, declaration: Declaration) -> None:
        """Add the only declaration of a function; another one must be equal to it."""
        if self._is_first(function, declaration):
            self._declarations.append(declaration)

    def request_python(self, function: str, version: str, span: Span) -> None:
        """Record which Python a call names; raise if that of install.python is another one."""
        self._python_requests.setdefault(function, (version, span))
        if len(self._python_requests) < 2:
            return
        python, uv = (self._python_requests[name][0] for name in ("install.python", "install.uv"))
        if not f"{python}.".startswith(f"{uv}."):
            first = next(iter(self._python_requests.values()))[1]
            raise CallError(
                f"install.uv() names Python {uv}, but the environment has Python {python}",
                hint=f"the first is at {first}; an environment has one Python, so name one version",
            )

    def find(self, kind: type[_D]) -> _D | None:
        """Return the first declaration of a type."""
        return next(iter(self.find_all(kind)), None)

    def find_all(self, kind: type[_D]) -> tuple[_D, ...]:
        """Return the declarations of a type, in the order of the file."""
        return tuple(item for item in self._declarations if isinstance(item, kind))

    def replace(self, old: Declaration, new: Declaration) -> None:
        """Replace a declaration by one that refines it."""
        self._declarations = [new if item is old else item for item in self._declarations]
        self._unique = {name: new if item is old else item for name, item in self._unique.items()}

    def add_step(self, step: Step) -> None:
        """Add a step."""
        self._steps.append(step)

    def add_include(self, include: IncludeRef) -> None:
        """Add a repository, once however often it is included."""
        if include not in self._includes:
            self._includes.append(include)

    def _is_first(self, function: str, value: Declaration) -> bool:
        """Return whether a function is called for the first time; raise if the values differ."""
        first = self._unique.setdefault(function, value)
        if first != value:
            raise CallError(
                f"{function}() is declared twice with different values",
                hint=f"the first is at {first.span}; keep one of them",
            )
        return first is value

    def build(self, *, name: str, file: str, span: Span, written_order: bool) -> Environment:
        """Return the environment of the function ``name`` of ``file``, defined at ``span``.

        With ``written_order`` the steps stay as written (``build.py``); without, those that run
        commands come last (envd's order).
        """
        declared = self.find(BaseSystem)
        base = declared or BaseSystem(image=DEFAULT_IMAGE, span=span)
        for declaration in self._declarations:
            base = declaration.choose_base(base)
        steps = self._steps if written_order else sorted(self._steps, key=_runs_commands)
        return Environment(
            name=name,
            file=file,
            base=base,
            declarations=tuple(item for item in self._declarations if item is not declared),
            steps=tuple(steps),
            includes=tuple(self._includes),
        )


def _runs_commands(step: Step) -> bool:
    return step.runs_commands
