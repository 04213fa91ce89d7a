"""The environments of this machine and of others, as a list shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from danlu.engine.contexts import Context
from danlu.engine.environment_directory import check_environment_name
from danlu.environments.manage import (
    DamagedEnvironmentView,
    is_in_context,
    list_environment_views,
)
from danlu.errors import DanluError, OutsideError
from danlu.remote.remote_host import RemoteHost
from danlu.util.danlu_program import CONTEXT_VARIABLE, LOCAL_CONTEXT
from danlu.util.decoding import convert_value, decode_json
from danlu.util.paths import Paths


class ListedService(msgspec.Struct, frozen=True):
    """A service of an environment."""

    running: bool


class ListedPort(msgspec.Struct, frozen=True):
    """A port of an environment, with the address at which it is published."""

    address: str
    host_port: int


class ListedEnvironment(msgspec.Struct, frozen=True):
    """The fields of an environment's JSON that a list shows, and the context it belongs to."""

    name: str
    phase: str
    reason: str = ""
    stopped_by_user: bool = False
    project: str = ""
    engine: str = ""
    assigned_gpus: tuple[int, ...] = ()
    started: datetime | None = None
    ended: datetime | None = None
    services: tuple[ListedService, ...] = ()
    ports: tuple[ListedPort, ...] = ()
    hint: str = ""
    context: str = ""

    @property
    def state(self) -> str:
        """The phase, with the cause if it has stopped by itself."""
        cause = self.reason.partition(":")[0]
        if self.phase != "Stopped" or self.stopped_by_user or not cause:
            return self.phase
        return f"{self.phase} ({cause})"


def list_local_environments(
    paths: Paths, named: tuple[str, Context] | None = None
) -> Sequence[dict[str, Any]]:
    """Return the environments of this machine, as JSON; only those of a context if given."""
    return [
        view.to_json()
        for view in list_environment_views(paths)
        # A damaged one may be in any.
        if named is None
        or isinstance(view, DamagedEnvironmentView)
        or is_in_context(view.spec, named, paths)
    ]


def parse_environments(rows: Sequence[Mapping[str, Any]]) -> Sequence[ListedEnvironment]:
    """Return what a list shows of environments in JSON.

    Raises :class:`msgspec.ValidationError` if a field is invalid.
    """
    return convert_value(rows, tuple[ListedEnvironment, ...])


def list_remote_environments(
    context: str, host: RemoteHost, cache: Path
) -> Sequence[dict[str, Any]]:
    """Return the environments of a context's machine, as JSON.

    If danlu is missing there, it is copied; ``cache`` is :attr:`Paths.cache`. Raises
    :class:`OutsideError` if the machine cannot be reached, or answers with something else.
    """
    from danlu.remote.program_transfer import program_script, run_program_there  # takes long

    program = program_script("danlu.cli", "ps", "--format", "json")
    script = f"export {CONTEXT_VARIABLE}={LOCAL_CONTEXT}; {program}"
    output = run_program_there(host, cache, script, what="list the environments")
    try:
        rows = decode_json(output, list[dict[str, Any]])
        for environment in parse_environments(rows):
            check_environment_name(environment.name)
    except (msgspec.MsgspecError, DanluError) as error:
        raise OutsideError(f"cannot list the environments of {host.name}: {error}") from error
    return [{**row, "context": context} for row in rows]
