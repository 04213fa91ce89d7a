"""Build the image of an evaluated environment: lock it, plan the graph, solve it, cache the result.

Imported only if something has to be built; see :mod:`danlu.project.build`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
)
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec
from msgspec.structs import replace

from danlu.assemble.assemble import Target, assemble_targets
from danlu.builder.embedded import build as embedded
from danlu.builder.embedded.build import find_foreign_step, list_unsolved, require_subordinate_ids
from danlu.builder.embedded.context import SolveRequest
from danlu.environment.conda import CondaPackages, strip_channel
from danlu.environment.image_layout import make_scheme
from danlu.environment.requirements import list_system_packages
from danlu.errors import MachineError, UsageError
from danlu.graph.ops import Bootstrap, Merge
from danlu.graph.progress import Ended, Message
from danlu.graph.types import Graph, Vertex
from danlu.project import build_cache, maintenance
from danlu.project.build_request import BuildOutcome, BuildRequest, choose_platform, last_build_key
from danlu.project.bytecode import describe_python
from danlu.project.download_sizes import describe_downloads, find_downloads, lock_sizes
from danlu.project.lock import LockRequest, update_lock
from danlu.sandbox import userns
from danlu.sandbox.emulation import host_platform, is_foreign, require_emulation
from danlu.sources.pypi.requirements import urls_with_credentials
from danlu.util.urls import strip_credentials

if TYPE_CHECKING:
    from danlu.builder.buildkit.sandbox import BuildKitSession
    from danlu.environment.lock import FunctionLock
    from danlu.environment.types import Environment
    from danlu.sources.pypi.uv_install import WheelPrefetch
    from danlu.store import Store, StoredImage


class BuildPlan(msgspec.Struct, frozen=True):
    """A graph, how to solve it, the vertices without a record, and their wheels on the way."""

    graph: Graph
    request: SolveRequest
    unsolved: tuple[Vertex, ...] = ()
    prefetched: WheelPrefetch | None = None


def make_lock_request(request: BuildRequest, environment: Environment) -> LockRequest:
    """Return what has to be locked."""
    return LockRequest(
        request.project,
        environment,
        request.project.inputs(environment),
        choose_platform(request.options.platform),
        request.settings,
        request.progress,
        frozen=request.options.frozen,
        offline=request.options.offline,
    )


@contextmanager
def build_environment(
    request: BuildRequest, environment: Environment, store: Store
) -> Iterator[BuildOutcome]:
    """Yield the image of an environment: lock what is not locked, run what has no record.

    Nothing is collected from ``store`` until the block ends.
    """
    lock_request = make_lock_request(request, environment)
    with ExitStack() as updating, store.lease():
        if (
            not _is_locked(lock_request)
            and not request.options.frozen
            and updating.enter_context(request.project.update_exclusively(request.progress))
        ):
            environment = request.project.environment(offline=request.options.offline)
            lock_request = make_lock_request(request, environment)
        plan = None
        if _is_locked(lock_request):
            updating.close()
            plan = make_build_plan(request, lock_request)
            image = embedded.find_image(plan.graph, plan.request, store)
            if image is not None:
                _record_project(lock_request, store, image)
                yield BuildOutcome(image, environment.runtime_settings(), unchanged=True)
                return
        # Before any thread or event loop: a process with threads cannot enter a user namespace.
        userns.enter(request.settings.paths)
        maintenance.start_sweep(store, request.settings)
        with ExitStack() as running:
            if plan is None:
                _require_ids(lock_request)
            else:
                plan = _prepare_plan(plan, request, lock_request.section, store, running)
            outcome = anyio.run(
                _lock_and_solve, request, lock_request, plan, store, running, updating
            )
        # Takes progress off the screen: what follows may be a program that uses the terminal.
        request.progress(Ended(time.monotonic() - request.started))
        yield outcome
    maintenance.start_maintenance(outcome.image.digest, request.settings)


def _is_locked(lock_request: LockRequest) -> bool:
    return not any(item.stale for item in _list_lock_requests(lock_request))


def _list_lock_requests(lock_request: LockRequest) -> tuple[LockRequest, ...]:
    """Return all that has to be locked: for a foreign build, also the tools of this machine."""
    tools = lock_request.host.all_targets if is_foreign(lock_request.platform) else ()
    return (*tools, *lock_request.all_targets)


def _prepare_plan(
    plan: BuildPlan,
    request: BuildRequest,
    lock: FunctionLock | None,
    store: Store,
    running: ExitStack,
) -> BuildPlan:
    """Return the plan with what has no record, and start to fetch it until ``running`` ends.

    Reports how much that is.

    Raises :class:`MachineError` if this machine cannot build it.
    """
    paths, config = request.settings.paths, request.settings.config
    unsolved = list_unsolved(plan.graph, store, fresh=plan.request.fresh)
    require_subordinate_ids(unsolved)
    _require_emulation(plan.graph, unsolved)
    embedded.preload_http_client(unsolved, plan.request, paths)
    prefetch = embedded.prefetch_wheels(
        unsolved, plan.request, store=store, paths=paths, config=config
    )
    plan = replace(plan, unsolved=unsolved, prefetched=running.enter_context(prefetch))
    # Whether apt's layers exist is known only when what is below them is solved.
    ops = [vertex.op for vertex in unsolved]
    is_new = any(isinstance(op, Bootstrap) for op in ops)
    downloads = find_downloads((op for op in ops if is_new or not op.reads_inputs), lock, paths)
    for line in describe_downloads(downloads, lock, config):
        request.progress(Message(line, time.monotonic() - request.started))
    return plan


def _require_ids(lock_request: LockRequest) -> None:
    """Raise :class:`MachineError` if the build needs subordinate ids that the account lacks.

    Checked before anything is resolved.
    """
    for environment in (item.environment for item in lock_request.all_targets):
        if environment.base.os:
            userns.require_ids(f"base(os={environment.base.os!r})")
        elif list_system_packages(environment):
            userns.require_ids("installing system packages")


def make_build_plan(
    request: BuildRequest,
    lock_request: LockRequest,
    *,
    instead: tuple[Environment, FunctionLock] | None = None,
) -> BuildPlan:
    """Return the plan under the lock, which is up to date.

    ``instead`` is built in place of the function's own environment and lock.
    """
    options, lock, platform = request.options, lock_request.section, lock_request.platform
    assert lock is not None
    targets = [
        Target(
            item.name,
            item.environment,
            item.section,
            item.inputs,
            tools=item.host.section if is_foreign(platform) else None,
        )
        for item in lock_request.all_targets
    ]
    if instead is not None:
        targets[-1] = replace(targets[-1], environment=instead[0], lock=instead[1])
    assembled = assemble_targets(targets, platform)
    metadata = {"function": request.project.target}
    if options.trusted:
        metadata["file"] = request.project.file
    if lock.python is not None:
        metadata |= describe_python(lock.python.executable, make_scheme(lock.python))
    editable = [package.name for package in lock.packages if package.editable]
    if editable and not lock_request.inputs.copies:
        metadata["editable"] = ", ".join(editable)
    addresses: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for target in targets:
        addresses |= _find_addresses(target.environment, request.project.directory)
        sizes |= lock_sizes(target.lock)
    builder_request = SolveRequest(
        project=request.project.directory,
        names=options.tags,
        offline=options.offline,
        fresh=options.ignores_cache,
        secrets=dict(options.secrets),
        ssh=options.ssh,
        metadata=metadata,
        trusted=options.trusted,
        debug=options.debug,
        addresses=addresses,
        sizes=sizes,
    )
    requests = {target.name: builder_request.with_sources(target.environment) for target in targets}
    own = requests[lock_request.name]
    others = {
        digest: requests[name]
        for name, digests in assembled.vertices.items()
        if not own.has_same_sources(requests[name])
        for digest in digests
    }
    return BuildPlan(assembled.graph, replace(own, requests=others))


def _find_addresses(environment: Environment, project: Path) -> dict[str, str]:
    """Map URLs of the lock, which contains no credentials, to the URLs of the build file."""
    addresses = urls_with_credentials(environment.python_packages, project)
    for step in environment.steps:
        for address in step.addresses():
            if address != strip_credentials(address):
                addresses[strip_credentials(address)] = address
    for packages in environment.find_all(CondaPackages):
        for channel in packages.channels:
            if channel != strip_channel(channel):
                addresses[strip_channel(channel).rstrip("/")] = channel
    return addresses


async def _lock_and_solve(
    request: BuildRequest,
    lock_request: LockRequest,
    plan: BuildPlan | None,
    store: Store,
    running: ExitStack,
    updating: ExitStack,
) -> BuildOutcome:
    """Update the lock unless there is a plan already, solve the graph, and cache the result.

    ``updating`` is closed when the lock is written; ``running`` is as for :func:`_prepare_plan`.
    """
    async with _open_builder(request, lock_request, store) as buildkit:
        if buildkit is not None and (plan is None or _has_layers_to_make(plan)):
            # A missing daemon is reported before anything is resolved or downloaded.
            await buildkit.open()
        changes: tuple[str, ...] = ()
        if plan is None:
            changes = (await update_lock(_list_lock_requests(lock_request), store)).lines
            updating.close()
            plan = make_build_plan(request, lock_request)
            plan = _prepare_plan(plan, request, lock_request.section, store, running)
        result, vertices = await embedded.solve_graph(
            plan.graph,
            plan.request,
            store=store,
            paths=request.settings.paths,
            config=request.settings.config,
            progress=request.progress,
            unsolved=plan.unsolved,
            prefetched=plan.prefetched,
            make_sandbox=None if buildkit is None else buildkit.connect,
        )
        image = embedded.commit_image(plan.graph, plan.request, result, vertices, store)
        _record_result(lock_request, plan.graph, store, image)
        if buildkit is not None:
            await buildkit.export_cache(request.options.cache_to)
    runtime = lock_request.environment.runtime_settings()
    return BuildOutcome(image, runtime, vertices, changes)


def _has_layers_to_make(plan: BuildPlan) -> bool:
    """Return whether a vertex has no record; not of steps, which are found by what is below."""
    ops = (vertex.op for vertex in plan.unsolved)
    return any(not op.reads_inputs and not isinstance(op, Merge) for op in ops)


def _require_emulation(graph: Graph, unsolved: tuple[Vertex, ...]) -> None:
    """Raise :class:`MachineError` if a step executes programs that this machine cannot execute."""
    vertex = find_foreign_step(graph, unsolved) if is_foreign(graph.platform) else None
    if vertex is not None:
        try:
            require_emulation(graph.platform, vertex.name)
        except MachineError as error:
            error.span = vertex.spans[0] if vertex.spans else None
            raise


def _open_builder(
    request: BuildRequest, lock_request: LockRequest, store: Store
) -> AbstractAsyncContextManager[BuildKitSession | None]:
    """Return what runs commands if the builder is BuildKit, else None; to be entered."""
    if request.builder == "embedded":
        return nullcontext()
    if is_foreign(lock_request.platform):
        raise UsageError(
            f"BuildKit builds only for {host_platform()} here, not for {lock_request.platform}",
            hint="use --builder embedded",
        )
    from danlu.project.buildkit_session import open_session  # few builds use it

    return open_session(request, lock_request.platform, store)


def _record_result(
    lock_request: LockRequest, graph: Graph, store: Store, image: StoredImage
) -> None:
    """Record the image for later builds of the same files, and what it was built of."""
    vertices = [
        {
            "name": vertex.name,
            "digest": vertex.digest,
            "spans": [str(span) for span in vertex.spans],
        }
        for vertex in graph.walk()
    ]
    store.put_record(
        last_build_key(lock_request.project, lock_request.platform),
        {"vertices": vertices, "config": image.digest},
    )
    _record_project(lock_request, store, image)


def _record_project(lock_request: LockRequest, store: Store, image: StoredImage) -> None:
    """Record the image for :func:`danlu.project.build_cache.lookup`."""
    if not is_foreign(lock_request.platform):
        runtime = lock_request.environment.runtime_settings()
        build_cache.store_result(store, lock_request.project, lock_request.inputs, image, runtime)
