"""The Python packages of an environment: what it declares, put to :mod:`danlu.resolve.python`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from danlu.environment.lock import FunctionLock, LockedPackage
from danlu.environment.needs import python_needs
from danlu.environment.types import Environment
from danlu.resolve.python import resolve_python
from danlu.resolve.python_addresses import declared_indexes
from danlu.resolve.python_task import PythonRequest
from danlu.sources.pypi import Target
from danlu.sources.pypi.building import BUILDER

if TYPE_CHECKING:
    from danlu.resolve.python_task import RunInside
    from danlu.resolve.resolve import Resolving
    from danlu.sandbox.types import Mount

__all__ = ["resolve_packages"]


async def resolve_packages(
    environment: Environment,
    lock: FunctionLock,
    kept: Sequence[LockedPackage],
    resolving: Resolving,
) -> tuple[LockedPackage, ...]:
    """All packages that the environment needs, sorted by name; ``kept`` stay where they can.

    Raises :class:`ResolveError` with the line to blame, :class:`OutsideError` for an index that
    does not answer.
    """
    assert lock.python is not None
    declared = python_needs(environment)
    request = PythonRequest(
        declared=declared,
        target=Target(lock.python.version, lock.base.libc, resolving.platform.architecture),
        project=resolving.project,
        paths=resolving.paths,
        indexes=declared_indexes(environment, resolving.project),
        offline=resolving.offline,
        executable=lock.python.executable,
        run_inside=_inside(lock, resolving),
        say=resolving.say,
    )
    return await resolve_python(
        request, kept, upgrade=resolving.upgrade, upgrade_all=resolving.upgrade_all
    )


def _inside(lock: FunctionLock, resolving: Resolving) -> RunInside:
    """Run programs in the base and system packages of ``lock``, built when first needed."""

    async def run(
        args: Sequence[str], mounts: Sequence[Mount], environment: Mapping[str, str]
    ) -> int:
        from danlu.sandbox.sandbox import Sandbox
        from danlu.sandbox.types import Process, Root

        layers = await resolving.build_system(lock)
        with resolving.store.staging() as work:
            sandbox = Sandbox(work, name=resolving.config.runtime)
            upper = work / "upper"
            upper.mkdir()
            root = Root(tuple(layer.tree for layer in layers), upper)
            process = Process(tuple(args), environment, uid=BUILDER, gid=BUILDER)
            return await sandbox.run(process, root, mounts=mounts, on_line=resolving.heard)

    return run
