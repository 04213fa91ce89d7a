"""What a build is asked for, what executors of ops get and return, and what is reported of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from danlu.environment.conda import CondaChannels
from danlu.errors import DanluError, Span, StepFailed
from danlu.graph.image_config import ImageConfig
from danlu.graph.types import Vertex, digest_of, op_fields
from danlu.sandbox.types import SYSTEM_PATH
from danlu.util.decoding import convert_value
from danlu.util.disk_full import disk_full_error, ran_out_of_space

# Only for annotations: most builds use neither a sandbox nor an index, and these take long to load.
if TYPE_CHECKING:
    from danlu.environment.types import AptSource, Environment, PipIndex, PythonPackages
    from danlu.graph.ops import Op
    from danlu.oci.digest import DiffId
    from danlu.sandbox.types import Mount, ProcessSpec, RootFilesystem
    from danlu.sources.pypi.indexes import IndexSettings
    from danlu.sources.pypi.uv_install import WheelPrefetch
    from danlu.store import Layer, Store
    from danlu.util.config import Configuration
    from danlu.util.paths import Paths
    from danlu.util.worker_pool import WorkerPool

#: The lines of a failed program's output in its error.
_LAST_LINES = 20

P = ParamSpec("P")
T = TypeVar("T")


class SolveRequest(msgspec.Struct, frozen=True):
    """How to build a graph.

    * ``names`` are references for the image; ``metadata`` is stored with it.
    * ``secrets`` maps ids to files of this machine, ``ssh`` is the socket of an agent.
    * ``trusted`` is whether the build file is the user's own, and not that of a bug report.
    * ``fresh`` runs every step again (``--no-cache``); ``debug`` opens a shell if a step fails.
    * ``apt_source``, ``pip_index``, ``conda_channels`` and ``python_packages`` are the package
      sources that the user declared; ``addresses`` maps addresses without credentials to those with
      them; ``mirrors`` are those that the build file sets, by name; ``sizes`` are those of locked
      files, by SHA-256.
    * ``requests`` are those for vertices, by digest, that belong to environments with other package
      sources: their results are only copied from.
    """

    project: Path
    names: tuple[str, ...] = ()
    offline: bool = False
    fresh: bool = False
    secrets: Mapping[str, Path] = {}
    ssh: Path | None = None
    metadata: Mapping[str, str] = {}
    trusted: bool = True
    debug: bool = False
    apt_source: AptSource | None = None
    pip_index: PipIndex | None = None
    conda_channels: CondaChannels | None = None
    python_packages: tuple[PythonPackages, ...] = ()
    addresses: Mapping[str, str] = {}
    mirrors: Mapping[str, str] = {}
    sizes: Mapping[str, int] = {}
    requests: Mapping[str, SolveRequest] = {}

    def find_request(self, vertex: Vertex) -> SolveRequest:
        """Return the request with the package sources of a vertex."""
        return self.requests.get(vertex.digest, self)

    def with_sources(self, environment: Environment) -> SolveRequest:
        """Return the request with the package sources that an environment declares."""
        return replace(
            self,
            apt_source=environment.apt_source,
            pip_index=environment.pip_index,
            conda_channels=environment.find(CondaChannels),
            python_packages=environment.python_packages,
            mirrors=environment.mirrors(),
        )

    def has_same_sources(self, other: SolveRequest) -> bool:
        """Return whether packages come from the same places."""
        fields = ("apt_source", "pip_index", "conda_channels", "python_packages", "mirrors")
        return all(getattr(self, name) == getattr(other, name) for name in fields)


class VertexReport(msgspec.Struct, frozen=True):
    """What happened to a vertex: its time in seconds, whether it was cached, and its layers."""

    name: str
    digest: str
    cached: bool
    seconds: float
    size: int
    spans: tuple[Span, ...]
    layers: tuple[DiffId, ...] = ()


class VertexResult(msgspec.Struct, frozen=True):
    """The result of a vertex: its new layers, lowest first, and files for vertices that use it.

    ``stack`` is everything below and including the vertex. ``artifacts`` maps a name to a file in
    the cache or the store (a built wheel). ``inherited`` is the configuration of the image at the
    bottom of the stack.
    """

    layers: tuple[Layer, ...]
    stack: tuple[Layer, ...]
    artifacts: Mapping[str, Path] = {}
    inherited: ImageConfig = msgspec.field(default_factory=ImageConfig)


class OpOutput(msgspec.Struct, frozen=True):
    """What an executor returns if it is more than layers.

    ``artifacts`` are files for the vertices that use this one, by name; ``inherited`` is the
    configuration that images built on it keep, None for that of the first input.
    """

    layers: tuple[Layer, ...] = ()
    artifacts: Mapping[str, Path] = {}
    inherited: ImageConfig | None = None


class RunSync(Protocol):
    """Run a blocking function in a worker thread."""

    def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Await ``function(*args, **kwargs)``; cancelling waits for its end."""


class StepRunner(Protocol):
    """Run a program in a root file system: here, in a container, or in a BuildKit daemon."""

    async def run(
        self,
        process: ProcessSpec,
        root: RootFilesystem,
        *,
        mounts: Sequence[Mount] = (),
        network: bool = True,
        on_line: Callable[[str], None] | None = None,
    ) -> int:
        """Run ``process`` and return its exit code; see :meth:`danlu.sandbox.sandbox.Sandbox.run`.

        What it changed is in ``root.upper`` afterwards, in overlayfs's form.
        """
        ...


class TransferReport(Protocol):
    """Report what an op has done so far, and of how much."""

    def __call__(self, current: int, total: int, unit: str = "") -> None:
        """Report bytes, or ``unit``; see :class:`~danlu.graph.progress.Transfer`."""


def ignore_warning(text: str) -> None:
    """Drop a warning, as in maintenance, where no user sees it."""


class OpContext(msgspec.Struct, frozen=True):
    """The context of an executor.

    * ``request`` is that of the build, with the package sources of the op's environment.
    * ``sandbox`` returns where programs run; it is created for the first that asks.
    * ``inputs`` are the results of all inputs, in order.
    * ``log`` takes lines of output, ``warn`` lines that the user must see in any case,
      ``transfer`` bytes or packages (current, total).
    * ``indexes`` are those that the request declares; ``prefetched`` are wheels whose download has
      started.
    * ``workers`` run functions in separate processes; without them, use ``run_sync``.
    """

    request: SolveRequest
    store: Store
    paths: Paths
    config: Configuration
    sandbox: Callable[[], StepRunner]
    inputs: tuple[VertexResult, ...]
    log: Callable[[str], None]
    transfer: TransferReport
    run_sync: RunSync
    warn: Callable[[str], None] = ignore_warning
    indexes: IndexSettings | None = None
    prefetched: WheelPrefetch | None = None
    workers: WorkerPool | None = None

    @property
    def below(self) -> tuple[Layer, ...]:
        """The stack that the op runs in or on."""
        return self.inputs[0].stack if self.inputs else ()

    def with_credentials(self, url: str) -> str:
        """Return an address from the lock, which has no credentials, as the user wrote it."""
        return self.request.addresses.get(url, url)

    async def run(
        self,
        process: ProcessSpec,
        root: RootFilesystem,
        what: str,
        *,
        mounts: Sequence[Mount] = (),
        network: bool = True,
        on_line: Callable[[str], None] = lambda line: None,
        explain: Callable[[str], str] = lambda output: "",
    ) -> None:
        """Run ``process`` in ``root``, and log its output; ``what`` names it in messages.

        Raises the error of :meth:`step_error`, with the last lines, if it does not succeed;
        ``explain`` returns the hint for them.
        """
        last: deque[str] = deque(maxlen=_LAST_LINES)

        def record_line(line: str) -> None:
            last.append(line)
            self.log(line)
            on_line(line)

        code = await self.sandbox().run(
            process, root, mounts=mounts, network=network, on_line=record_line
        )
        if code:
            message = f"{what} ended with exit code {code}"
            raise self.step_error(message, code=code, output=last, hint=explain("\n".join(last)))

    def step_error(
        self, message: str, *, code: int, output: Iterable[str], hint: str = ""
    ) -> DanluError:
        """Return the error for a command that ended with ``code`` after the lines ``output``.

        :class:`StoreError` if the disk was full, which is not the command's fault; else
        :class:`StepFailed`.
        """
        details = tuple(output)
        root = self.store.root
        if ran_out_of_space(root, details):
            return disk_full_error(f"the store ({root})", output=details)
        return StepFailed(message, code=code, details=details, hint=hint)


def merge_results(inputs: Sequence[VertexResult]) -> VertexResult:
    """Return the result of a merge, which has the configuration of the first input."""
    inherited = inputs[0].inherited if inputs else ImageConfig()
    stack = merge_stacks(result.stack for result in inputs)
    return VertexResult(layers=(), stack=stack, inherited=inherited)


def make_cached_result(
    op: Op,
    record: Mapping[str, Any],
    layers: tuple[Layer, ...],
    inputs: Sequence[VertexResult],
    artifacts: Mapping[str, Path] | None = None,
) -> VertexResult:
    """Return the result that an earlier build recorded for ``op``."""
    below = inputs[0].stack if inputs and op.is_step else ()
    recorded = record.get("inherited")
    if recorded is not None:
        inherited = convert_value(recorded, ImageConfig)
    else:
        inherited = inputs[0].inherited if inputs else ImageConfig()
    return VertexResult(layers, (*below, *layers), artifacts or {}, inherited)


def extend_environment(
    inherited: ImageConfig, environment: Iterable[tuple[str, str]], path: Iterable[str]
) -> dict[str, str]:
    """Return the variables of an image over ``inherited``, with ``path`` before its PATH."""
    variables = dict(inherited.environment)
    below = variables.get("PATH", SYSTEM_PATH)
    variables.update(environment)
    variables["PATH"] = ":".join((*path, variables.get("PATH", below)))
    return variables


def merge_stacks(stacks: Iterable[tuple[Layer, ...]]) -> tuple[Layer, ...]:
    """Concatenate stacks, each without the bottom layers that it shares with the result so far."""
    merged: list[Layer] = []
    for stack in stacks:
        common = 0
        for below, layer in zip(merged, stack, strict=False):
            if below.diff_id != layer.diff_id:
                break
            common += 1
        merged.extend(stack[common:])
    return tuple(merged)


# -- cache keys: under which the result of a vertex is recorded in the store -----------------------

# A vertex that does not read the stack below is keyed by its definition, so it is found without
# solving anything below it. One that does is keyed by its op and the *content* of that stack: a
# changed line that changes no byte runs nothing again. Neither key has times, users or paths.

#: Raised by one if layers of the same definition get different bytes than before.
LAYER_FORMAT = 3


def definition_key(vertex: Vertex) -> str | None:
    """Return the key of a vertex that its definition alone decides, else None."""
    if vertex.op.reads_inputs:
        return None
    return digest_of(["vertex", LAYER_FORMAT, vertex.digest])


def stack_key(op: Op, inputs: Sequence[VertexResult]) -> str:
    """Return the key of an op that reads the stack of its first input.

    Programs run with the variables of the base image, which are part of the key, too.
    """
    stack = inputs[0].stack if inputs else ()
    key: list[object] = [op_fields(op), [layer.diff_id for layer in stack]]
    variables = inputs[0].inherited.environment if inputs else ()
    return digest_of(["stack", LAYER_FORMAT, *key, *([variables] if variables else [])])
