"""Engines of environments, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Protocol

from danlu.engine.docker.stopped_container import AttachedContainer
from danlu.engine.environment_directory import (
    KUBERNETES_ENGINE,
    EnvironmentDirectory,
    EnvironmentSpec,
)
from danlu.engine.types import EnvironmentContainer
from danlu.errors import UsageError
from danlu.util.config import Configuration
from danlu.util.paths import Paths
from danlu.util.suggest import suggest_name

_PR_SET_CHILD_SUBREAPER = 36


class EnvironmentEngine(Protocol):
    """Starts containers of environments, for their supervisors."""

    async def start_container(
        self, environment: EnvironmentDirectory, spec: EnvironmentSpec, resources: ExitStack
    ) -> EnvironmentContainer:
        """Start the container; it is cleaned up when ``resources`` closes.

        Raises :class:`~danlu.errors.DanluError` if it could not be started.
        """


# A supervisor loads its own engine only: the start of an environment waits for that.


def _open_embedded_engine(
    paths: Paths, config: Configuration, restarted: AttachedContainer | None
) -> EnvironmentEngine:
    import ctypes

    from danlu.engine.embedded_environment import EmbeddedEngine

    # Programs whose parent has ended become our children, where they are found and ended. Nobody
    # would wait for those of other engines, such as Podman's conmon.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return EmbeddedEngine(paths, config)


def _open_docker_engine(
    program: str, paths: Paths, config: Configuration, restarted: AttachedContainer | None
) -> EnvironmentEngine:
    from danlu.engine.docker.command import DockerCommand
    from danlu.engine.docker.container import DockerEngine

    return DockerEngine(DockerCommand(program), config, restarted)


def _open_kubernetes_engine(
    paths: Paths, config: Configuration, restarted: AttachedContainer | None
) -> EnvironmentEngine:
    from danlu.engine.kubernetes.container import KubernetesEngine

    return KubernetesEngine(paths.vscode_servers)


_ENGINES: Mapping[
    str, Callable[[Paths, Configuration, AttachedContainer | None], EnvironmentEngine]
] = {
    "embedded": _open_embedded_engine,
    "docker": partial(_open_docker_engine, "docker"),
    "podman": partial(_open_docker_engine, "podman"),
    KUBERNETES_ENGINE: _open_kubernetes_engine,
}
ENGINE_NAMES = tuple(_ENGINES)


def open_engine(
    name: str, paths: Paths, config: Configuration, restarted: AttachedContainer | None
) -> EnvironmentEngine:
    """Return the engine called ``name``; raise :class:`UsageError` if it is unknown.

    ``restarted`` is a container of Docker or Podman that is being started already. With the
    embedded engine this process enters new namespaces.
    """
    if name not in _ENGINES:
        raise UsageError(
            f"unknown engine {name!r}", hint=suggest_name(name, _ENGINES, what="engines")
        )
    return _ENGINES[name](paths, config, restarted)
