"""Run one program in a root file system with BuildKit, as :class:`danlu.sandbox.sandbox.Sandbox`.

A run is a graph of four kinds of vertices: the stack below and each mounted directory come from an
OCI layout (``oci-layout://``), an ``ExecOp`` runs the program, a ``DiffOp`` is what it changed. The
changes come back as one layer, which is unpacked where an overlay would have recorded them. So the
builder handles them as those of a local run: the same steps give the same layers.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from danlu.builder.buildkit import llb
from danlu.builder.buildkit.buildctl import BuildctlClient, SolveFailure, SolveInputs
from danlu.builder.buildkit.input_images import INPUT_TIME, InputImages
from danlu.errors import ChecksumError, OutsideError, UsageError
from danlu.oci.digest import DiffId
from danlu.oci.layout import read_layout
from danlu.oci.tar import extract_layer
from danlu.oci.types import layer_compression
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.merge_upper import merge_upper
from danlu.sandbox.network_env import NetworkEnvironment, detect_network_environment
from danlu.sandbox.prepare import add_mount_points, has_shell, wrap_in_shell
from danlu.sandbox.types import Mount, ProcessSpec, RootFilesystem
from danlu.store import Store
from danlu.util.files import private_directory, remove_tree

_STORE = "danlu"
#: What BuildKit mounts in every container, besides the kernel's file systems.
_NAME_FILES = (
    Mount("/etc/hosts", Path("/etc/hosts"), readonly=True),
    Mount("/etc/resolv.conf", Path("/etc/hosts"), readonly=True),
)
#: Variables that BuildKit adds for its own tracing, and HOME, which danlu's sandbox does not set.
_ADDED_VARIABLES = (
    "HOME",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_TRACES_EXPORTER",
    "TRACEPARENT",
)
#: Secrets of BuildKit are this long at most (secretsprovider.MaxSecretSize).
_MAX_SECRET_SIZE = 500 << 10
_HOSTNAME = "danlu"
#: Larger directories are not sent to a daemon: it is likelier that one was not meant to be.
_MAX_MOUNT_SIZE = 1 << 30
#: More layers than a daemon is likely to keep.
_MAX_RECORDED_LAYERS = 5000
#: What a BuildKit reports that has no oci-layout:// sources, or neither DiffOp nor MergeOp.
_MISSING_FEATURE = re.compile(r"unknown schema|unknown API capability|could not resolve &")
#: What BuildKit reports when it reads a blob that the layout does not have (containerd's store).
_MISSING_BLOB = re.compile(r"sha256:[0-9a-f]{64}: not found")


class BuildKitSession:
    """What the runs of one build share: the daemon, the images sent to it, and the caches.

    ``connect`` is entered when a daemon is needed first, and left with the session. ``work`` is a
    private directory on the store's file system. ``fresh`` ignores BuildKit's cache, ``trusted`` is
    whether the build file is the user's own. The store records which layers each daemon has.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[BuildctlClient]],
        store: Store,
        work: Path,
        *,
        platform: tuple[str, str],
        import_cache: Sequence[str] = (),
        fresh: bool = False,
        trusted: bool = True,
    ) -> None:
        self._connect = connect
        self._stack = AsyncExitStack()
        self._client: BuildctlClient | None = None
        self.work = work
        self.platform = platform
        self.import_cache = tuple(import_cache)
        self.fresh = fresh
        self.images = InputImages(store, work / "buildkit-inputs", platform)
        self._store = store
        self._record_key = ""
        self._layers: dict[DiffId, None] = {}
        self._open_lock = anyio.Lock()
        self.network_env = detect_network_environment(work, trusted=trusted)
        self.steps: list[llb.VertexOutput] = []

    async def __aenter__(self) -> BuildKitSession:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def open(self) -> BuildctlClient:
        """Connect to the daemon, once, and find what it has.

        Raises :class:`OutsideError` if it is missing.
        """
        async with self._open_lock:
            if self._client is not None:
                return self._client
            client = await self._stack.enter_async_context(self._connect())
            worker = await client.find_worker()
            self._client = client
            self._record_key = f"buildkit-layers:{worker}"
            record = self._store.record(self._record_key)
            self._layers.update(dict.fromkeys(record["layers"] if record else ()))
            self.images.omit_layers(self._layers)
            return client

    def connect(self, transfer: Callable[[int, int], None]) -> BuildKitSandbox:
        """Return a sandbox that reports the bytes that it sends to ``transfer``."""
        return BuildKitSandbox(self, transfer)

    async def solve(
        self,
        definition: bytes,
        inputs: SolveInputs,
        *,
        output: Path | None = None,
        step: str = "",
        on_line: Callable[[str], None] = lambda line: None,
        transfer: Callable[[int, int], None] = lambda current, total: None,
    ) -> SolveFailure | None:
        """Solve as :meth:`BuildctlClient.solve` does; send layers that the daemon has deleted."""
        client = await self.open()
        solve = partial(
            client.solve, definition, inputs, step=step, on_line=on_line, transfer=transfer
        )
        failure = await solve(output=output)
        if failure is None or not _MISSING_BLOB.search(failure.message):
            return failure
        self._layers.clear()
        await anyio.to_thread.run_sync(self.images.write_omitted_layers)
        if output is not None:
            await anyio.to_thread.run_sync(remove_tree, output)
        return await solve(output=output)

    def record_layers(self, trees: Sequence[Path]) -> None:
        """Record that the daemon has the layers of the store among ``trees``."""
        layers = [layer.diff_id for tree in trees if (layer := self._store.layer_at(tree))]
        if not self._layers.keys() >= set(layers):
            self._layers.update(dict.fromkeys(layers))
            recorded = list(self._layers)[-_MAX_RECORDED_LAYERS:]
            self._store.put_record(self._record_key, {"layers": recorded})

    async def export_cache(self, targets: Sequence[str]) -> None:
        """Export the cache of the steps that ran to ``targets``; nothing if there were none.

        Raises :class:`OutsideError` if the daemon cannot write one.
        """
        if not self.steps or not targets:
            return
        steps = list(dict.fromkeys(self.steps))
        root = steps[0]
        if len(steps) > 1:
            root = llb.VertexOutput(llb.make_merge(steps, name="steps"))
        inputs = SolveInputs(
            layouts={_STORE: self.images.directory},
            import_cache=self.import_cache,
            export_cache=tuple(targets),
        )
        failure = await self.solve(llb.encode_definition(root), inputs)
        if failure is not None:
            raise OutsideError(
                f"BuildKit could not export the cache: {failure.message}",
                hint="check the value of --cache-to; the image was built",
            )


class _RunPlan(msgspec.Struct, frozen=True):
    """The vertices of a run, and the files of this machine that its session serves."""

    root: llb.VertexOutput
    step: llb.LlbVertex
    inputs: SolveInputs
    writable: tuple[tuple[Path, llb.VertexOutput, int], ...]


class BuildKitSandbox:
    """Run processes in a BuildKit daemon; see :class:`BuildKitSession`."""

    def __init__(self, session: BuildKitSession, transfer: Callable[[int, int], None]) -> None:
        self._session = session
        self._transfer = transfer

    async def run(
        self,
        process: ProcessSpec,
        root: RootFilesystem,
        *,
        mounts: Sequence[Mount] = (),
        network: bool = True,
        on_line: Callable[[str], None] | None = None,
    ) -> int:
        """Run ``process`` to completion, put its changes into ``root.upper``, return the exit code.

        Arguments and codes are those of :meth:`danlu.sandbox.sandbox.Sandbox.run`. Files that it
        wrote to writable mounts are moved to their sources. Raises :class:`UsageError` without
        ``on_line``: BuildKit has no terminal. Raises :class:`OutsideError` if the daemon cannot be
        reached, goes away, or cannot start the program.
        """
        if on_line is None:
            raise UsageError(
                "BuildKit cannot open a shell in a failed step",
                hint="use --debug with --builder embedded",
            )
        await self._session.open()
        place = private_directory(self._session.work, "buildkit")
        try:
            plan = await anyio.to_thread.run_sync(
                self._plan_run, process, root, mounts, network, place
            )
            changes = llb.VertexOutput(llb.make_diff(plan.root, llb.VertexOutput(plan.step)))
            failure = await self._session.solve(
                llb.encode_definition(changes),
                plan.inputs,
                output=place / "changes" if root.upper is not None else None,
                step=plan.step.name,
                on_line=on_line,
                transfer=self._transfer,
            )
            if failure is not None:
                return _exit_code(failure)
            self._session.steps.append(changes)
            await anyio.to_thread.run_sync(self._session.record_layers, root.layers)
            if root.upper is not None:
                await anyio.to_thread.run_sync(
                    _record_changes, place / "changes", root.upper, root.layers, process
                )
            for number, (source, lower, index) in enumerate(plan.writable):
                await self._fetch_mount(plan, lower, index, place / f"mount-{number}", source)
            return 0
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(remove_tree, place)

    async def _fetch_mount(
        self, plan: _RunPlan, lower: llb.VertexOutput, index: int, place: Path, source: Path
    ) -> None:
        """Apply to ``source`` what the run changed in its mount, the output ``index``."""
        step = msgspec.structs.replace(plan.step, fresh=False)
        changes = llb.VertexOutput(llb.make_diff(lower, llb.VertexOutput(step, index)))
        failure = await self._session.solve(
            llb.encode_definition(changes), plan.inputs, output=place
        )
        if failure is not None:
            raise OutsideError(f"BuildKit could not return what a step wrote: {failure.message}")

        def apply_changes() -> None:
            upper = private_directory(place, "upper")
            _extract_changes(place, upper)
            merge_upper(upper, source)

        await anyio.to_thread.run_sync(apply_changes)

    def _plan_run(
        self,
        process: ProcessSpec,
        root: RootFilesystem,
        mounts: Sequence[Mount],
        network: bool,
        place: Path,
    ) -> _RunPlan:
        session = self._session
        view = LayerView(root.layers)
        files = _SessionFiles(place)
        planned: list[llb.ExecMount] = []
        writable: list[tuple[Path, llb.VertexOutput, int]] = []
        network_env = session.network_env if network else NetworkEnvironment({})
        for mount in _select_network_mounts(network_env, view):
            planned.append(self._plan_mount(mount, files, process, is_local=True))
        for mount in mounts:
            exec_mount = self._plan_mount(mount, files, process, is_local=mount.private)
            if exec_mount.kind == "bind" and not mount.readonly:
                assert mount.source is not None
                assert exec_mount.source is not None
                writable.append((mount.source, exec_mount.source, len(writable) + 1))
            planned.append(exec_mount)
        added = {
            name: files.add_secret_text(value)
            for name, value in network_env.environment.items()
            if name not in process.environment
        }
        wrapped = wrap_in_shell(process, _make_wrapper(process)) if has_shell(view) else process
        epoch = _read_epoch(process)
        points = (*_select_network_mounts(network_env, view), *mounts, *_NAME_FILES)
        layers = add_mount_points(root.layers, view, place, process, points)
        stack = self._make_source(session.images.add_stack(layers, epoch=epoch), "layers")
        step = llb.make_exec(
            wrapped.args,
            [llb.ExecMount("/", source=stack), *planned],
            environment=process.environment,
            secret_environment=added,
            working_directory=process.working_directory,
            user=f"{process.uid}:{process.gid}",
            hostname=_HOSTNAME,
            network=network,
            platform=session.platform,
            name=f"step {os.urandom(4).hex()}",
            fresh=session.fresh,
        )
        inputs = SolveInputs(
            layouts={_STORE: session.images.directory},
            secrets=files.secrets,
            agents=files.agents,
            import_cache=session.import_cache,
        )
        return _RunPlan(stack, step, inputs, tuple(writable))

    def _make_source(self, digest: str, name: str) -> llb.VertexOutput:
        identifier = f"oci-layout://danlu/input@{digest}"
        return llb.VertexOutput(llb.make_source(identifier, {"oci.store": _STORE}, name=name))

    def _plan_mount(
        self, mount: Mount, files: _SessionFiles, process: ProcessSpec, *, is_local: bool
    ) -> llb.ExecMount:
        """Return a mount of a run.

        ``is_local`` files are this machine's own (certificates, indexes) or secrets: they are
        neither stored in the daemon nor part of a cache key.
        """
        if mount.kind == "tmpfs":
            return llb.ExecMount(mount.target, "tmpfs")
        assert mount.source is not None
        status = mount.source.stat()
        if stat.S_ISSOCK(status.st_mode):
            return llb.ExecMount(
                mount.target,
                "ssh",
                id=files.add_agent(mount.source),
                uid=process.uid,
                gid=process.gid,
                mode=0o600,
            )
        if is_local:
            return _plan_secret(mount, mount.source, status, files)
        _check_size(mount.source)
        scratch = private_directory(files.place, "file")
        scratch.chmod(0o755)
        digest, selector = self._session.images.add_mount(mount.source, scratch)
        source = self._make_source(digest, mount.target)
        return llb.ExecMount(
            mount.target, source=source, selector=selector, readonly=mount.readonly
        )


def _plan_secret(
    mount: Mount, source: Path, status: os.stat_result, files: _SessionFiles
) -> llb.ExecMount:
    if status.st_size > _MAX_SECRET_SIZE:
        raise UsageError(
            f"the file for {mount.target} is larger than a secret of BuildKit may be (500 KB)",
            hint="use a smaller file, or build with --builder embedded",
        )
    name = files.add_secret(source)
    if not mount.private:
        return llb.ExecMount(mount.target, "secret", id=name, mode=0o444)
    mode = stat.S_IMODE(status.st_mode)
    owner, group = status.st_uid, status.st_gid
    return llb.ExecMount(mount.target, "secret", id=name, uid=owner, gid=group, mode=mode)


def _check_size(path: Path) -> None:
    """Raise :class:`UsageError` if the directory ``path`` is too large to send."""
    total = 0
    for root, _, names in os.walk(path):
        total += sum(os.lstat(os.path.join(root, name)).st_size for name in names)
        if total > _MAX_MOUNT_SIZE:
            raise UsageError(
                f"{path} has more than 1 GB, which would be sent to BuildKit",
                hint="use a package index with an address, or build with --builder embedded",
            )


class _SessionFiles:
    """Secrets and agents of a run, with the ids that its vertices know them by."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.secrets: dict[str, Path] = {}
        self.agents: dict[str, Path] = {}

    def add_secret(self, path: Path) -> str:
        name = f"file{len(self.secrets)}"
        self.secrets[name] = path
        return name

    def add_secret_text(self, text: str) -> str:
        path = self.place / f"variable{len(self.secrets)}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        return self.add_secret(path)

    def add_agent(self, socket: Path) -> str:
        name = f"agent{len(self.agents)}"
        self.agents[name] = socket
        return name


def _select_network_mounts(network_env: NetworkEnvironment, view: LayerView) -> list[Mount]:
    """Return the mounts of ``network_env`` without defaults for files that the image has.

    Directories of packages on this machine are not sent to a daemon. They are empty there, because
    uv fails if one is missing.
    """
    kept = [
        mount
        if mount.source is None or mount.source.is_file()
        else Mount(mount.target, kind="tmpfs")
        for mount in network_env.mounts
    ]
    defaults = (
        mount for mount in network_env.defaults if view.entry(view.resolve(mount.target)) is None
    )
    return [*kept, *defaults]


def _make_wrapper(process: ProcessSpec) -> str:
    """Return a script that merges the output streams and unsets what danlu did not set."""
    added = [name for name in _ADDED_VARIABLES if name not in process.environment]
    return f'unset {" ".join(added)}; exec "$@" 2>&1'


def _exit_code(failure: SolveFailure) -> int:
    if failure.exit_code is not None:
        return failure.exit_code
    if re.search(r"oom|out of memory", failure.message, re.IGNORECASE):
        return 137
    hint = ""
    if _MISSING_FEATURE.search(failure.message):
        hint = "use BuildKit 0.11 or later"
    elif re.search(r"no space left on device", failure.message):
        hint = "free space where buildkitd keeps its state; `buildctl prune` deletes its cache"
    raise OutsideError(f"BuildKit could not run a step: {failure.message}", hint=hint)


def _record_changes(layout: Path, upper: Path, below: Sequence[Path], process: ProcessSpec) -> None:
    """Unpack the changes of a run into ``upper``, as an overlay over ``below`` records them."""
    _extract_changes(layout, upper)
    _restore_times(upper, (), LayerView(below), {INPUT_TIME, _read_epoch(process)})


def _read_epoch(process: ProcessSpec) -> int:
    return int(process.environment.get("SOURCE_DATE_EPOCH", INPUT_TIME))


def _extract_changes(layout: Path, upper: Path) -> None:
    """Unpack the only layer of the image in ``layout``; verified, because a daemon may err."""
    images = read_layout(layout)
    if len(images) != 1 or len(images[0].layers) > 1:
        raise OutsideError("BuildKit returned something other than the changes of a step")
    for (descriptor, path), diff_id in zip(images[0].layers, images[0].image.diff_ids, strict=True):
        if layer_compression(descriptor.media_type) != "none":
            raise OutsideError(f"BuildKit returned a compressed layer: {descriptor.media_type}")
        with path.open("rb") as stream:
            summary = extract_layer(stream, upper)
        if summary.diff_id != diff_id:
            raise ChecksumError(f"BuildKit returned a layer with the diff ID {summary.diff_id}")


def _restore_times(
    upper: Path, parts: tuple[str, ...], view: LayerView, sent_times: set[int]
) -> None:
    """Give what the run did not change the times that it has in the trees below.

    The layers sent to the daemon have normalized times (``sent_times``), the trees on this disk may
    not. Contents come before their directory, whose time they would change.
    """
    with os.scandir(upper) as found:
        entries = list(found)
    for entry in entries:
        status = entry.stat(follow_symlinks=False)
        place = (*parts, entry.name)
        if stat.S_ISDIR(status.st_mode):
            _restore_times(Path(entry.path), place, view, sent_times)
        if status.st_mtime_ns % 1_000_000_000 or int(status.st_mtime) not in sent_times:
            continue
        lower = view.entry(place)
        if lower is None or stat.S_ISCHR(status.st_mode):
            continue
        model = os.lstat(lower)
        if stat.S_IFMT(model.st_mode) == stat.S_IFMT(status.st_mode):
            times = (model.st_atime_ns, model.st_mtime_ns)
            os.utime(entry.path, ns=times, follow_symlinks=False)
