"""System packages: one installation, of exactly the locked files."""

from __future__ import annotations

from danlu.environment.lock import FunctionLock
from danlu.environment.needs import python_version, system_needs, wants_python
from danlu.environment.types import Environment
from danlu.errors import Span
from danlu.graph import AptInstall, Unresolved, Vertex

__all__ = ["system_vertex"]

_SHOWN = 4


def system_vertex(environment: Environment, lock: FunctionLock | None, below: Vertex) -> Vertex:
    """``below`` with the declared system packages, or ``below`` where there are none."""
    if lock is None:
        names = list(system_needs(environment))
        if wants_python(environment) and not environment.base.image:
            names.append(f"python{python_version(environment)}")
        if not names:
            return below
        op = Unresolved("system packages", tuple(names))
        return Vertex(op, (below,), _label(names), "system", _spans(environment))
    if lock.system is None or not lock.system.packages:
        return below
    install = AptInstall(
        packages=lock.system.packages,
        requested=lock.system.requested,
        epoch=lock.base.epoch,
        codename=lock.base.codename,
    )
    return Vertex(install, (below,), _label(lock.system.requested), "system", _spans(environment))


def _label(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "apt " + ", ".join(names[:_SHOWN]) + more


def _spans(environment: Environment) -> tuple[Span, ...]:
    declared = [one.span for one in environment.system_packages]
    single = (environment.python, environment.uv, environment.shell)
    declared.extend(one.span for one in single if one is not None)
    if environment.base.dev:
        declared.append(environment.base.span)
    return tuple(sorted(span for span in declared if span.line))
