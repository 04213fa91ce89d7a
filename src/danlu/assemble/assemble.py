"""The order of a build: base, system packages, Python, configuration, then the user's steps."""

from __future__ import annotations

from collections.abc import Sequence

from danlu.assemble.base import base_vertex
from danlu.assemble.files import config_vertex
from danlu.assemble.layout import VENV, base_environment
from danlu.assemble.python import package_vertices, venv_vertex
from danlu.assemble.steps import Situation, step_over
from danlu.assemble.system import system_vertex
from danlu.environment.inputs import Inputs
from danlu.environment.lock import FunctionLock
from danlu.environment.types import Environment, Other
from danlu.graph import Graph, ImageConfig, Merge, Platform, Unbuilt, Vertex

__all__ = ["assemble", "assemble_system"]


def assemble(
    environment: Environment,
    lock: FunctionLock | None,
    inputs: Inputs | None = None,
    *,
    platform: Platform | None = None,
) -> Graph:
    """The build graph of an environment under its lock.

    Without a lock, what only a lock can tell is an ``Unresolved`` vertex: such a graph can be
    shown, not built. Functions that are planned but not built are ``Unbuilt`` vertices.
    """
    platform = platform or Platform()
    situation = Situation(
        environment=environment,
        lock=lock,
        inputs=inputs or Inputs(),
        platform=platform,
        python=lock.python if lock else None,
        epoch=lock.base.epoch if lock else 0,
    )
    base = base_vertex(environment, lock, platform)
    system = system_vertex(environment, lock, base)
    root = _merged([system, *_leaves(situation, system)])
    for step in environment.steps:
        root = step_over(step, root, situation)
    return Graph(
        root=_with_unbuilt(root, environment),
        config=_config(situation),
        platform=platform,
        epoch=situation.epoch,
    )


def assemble_system(environment: Environment, lock: FunctionLock, platform: Platform) -> Graph:
    """The graph of the base with the system packages alone: where packages are built."""
    root = system_vertex(environment, lock, base_vertex(environment, lock, platform))
    return Graph(root=root, config=ImageConfig(), platform=platform, epoch=lock.base.epoch)


def _leaves(situation: Situation, system: Vertex) -> Sequence[Vertex]:
    environment, lock = situation.environment, situation.lock
    leaves: list[Vertex] = []
    if lock and lock.python:
        visible = lock.python.provider == "image"
        leaves.append(venv_vertex(lock.python, situation.epoch, visible_base=visible))
    leaves.extend(package_vertices(environment, lock, system))
    config = config_vertex(environment, situation.epoch)
    return [*leaves, config] if config else leaves


def _merged(vertices: Sequence[Vertex]) -> Vertex:
    if len(vertices) == 1:
        return vertices[0]
    return Vertex(Merge(), tuple(vertices), name="environment", branch="environment")


def _with_unbuilt(root: Vertex, environment: Environment) -> Vertex:
    unbuilt = [_unbuilt(one) for one in environment.other if not one.at_start]
    return Vertex(Merge(), (root, *unbuilt), name="environment") if unbuilt else root


def _unbuilt(call: Other) -> Vertex:
    name = f"{call.function} (not built by this version)"
    return Vertex(Unbuilt(call.function, call.arguments), (), name, "unbuilt", (call.span,))


def _config(situation: Situation) -> ImageConfig:
    environment = situation.environment
    variables = dict(base_environment(situation.python))
    path: tuple[str, ...] = (f"{VENV}/bin",) if situation.python else ()
    for declared in environment.environ:
        variables.update(declared.variables)
        path = (*declared.extra_path, *path)
    if environment.shell:
        variables["SHELL"] = f"/usr/bin/{environment.shell.name}"
    owner = environment.owner
    return ImageConfig(
        environment=tuple(sorted(variables.items())),
        path=path,
        entrypoint=environment.entrypoint.args if environment.entrypoint else (),
        working_directory="",
        user=f"{owner.uid}:{owner.gid}" if owner else "",
    )
