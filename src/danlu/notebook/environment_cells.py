"""Run what a notebook inside an environment asks for: job cells and ``%jobs``, in its image.

The notebook's code is not trusted with this machine or its clusters. Its jobs run in containers of
the environment's own image, with its project, and it sees no other jobs; results are passed on as
the replicas encoded them, and never unpickled here. Jobs of a notebook in a pod are pods of its
cluster. Their project is what the kernel sends of it: the modules that the cell imports.
"""

from __future__ import annotations

import shlex
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from io import TextIOBase
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.engine.kubernetes.settings import read_settings
from danlu.engine.registry import find_engine
from danlu.engine.settings import Settings, load_settings
from danlu.environments.jupyter import BRIDGE_LOG
from danlu.errors import DanluError, OutsideError, UsageError
from danlu.jobs.kubernetes.manifests import MAX_BYTES
from danlu.jobs.local.client import LocalJobs
from danlu.jobs.local.file_exchange import ENVIRONMENT_LABEL
from danlu.jobs.results import list_returned_names
from danlu.jobs.types import JobBackend, JobResult, Submission
from danlu.notebook import background_loop, cells, jobs_magic
from danlu.notebook.cell_code import check_code
from danlu.notebook.errors import hide_traceback, render_error
from danlu.notebook.input_transformer import is_job_cell
from danlu.notebook.kernel_connection import (
    InvalidMessage,
    KernelConnection,
    KernelRequest,
    describe_error,
)
from danlu.notebook.magics import NotebookContext, read_job_cell
from danlu.notebook.types import Cell, SentVariable, VariableStore
from danlu.notebook.variables import missing_results_error, select_results
from danlu.project.local_modules import find_imports, parse_source
from danlu.sandbox.types import PROJECT_DIRECTORY
from danlu.training.pod_template import pod_spec
from danlu.util.human import format_size
from danlu.util.paths import Paths

_GUIDE = "a notebook on this machine can: see `danlu kernel install`"


class EnvironmentJobs(LocalJobs):
    """The jobs of one environment's notebooks, which run in its image only."""

    def __init__(self, paths: Paths, name: str, image: str, project: Path) -> None:
        super().__init__(paths, labels={ENVIRONMENT_LABEL: name})
        self._image = image
        self._project = project

    async def submit(self, submission: Submission) -> str:
        """Start a job; raise :class:`UsageError` if it would see more than the environment does."""
        images = {image.digest for image in submission.images.values()}
        volumes = [
            volume
            for spec in submission.job.replicas.values()
            for volume in pod_spec(spec.template).get("volumes") or ()
        ]
        is_confined = images == {self._image} and submission.directory == self._project
        if not is_confined or volumes or submission.objects:
            raise UsageError("jobs of an environment's notebook run in its image, with its project")
        # Values are pickled there, and unpickled in the kernel, which runs in the same image.
        return await super().submit(replace(submission, trusted=True))


class RemoteVariables:
    """The variables of a kernel (:class:`danlu.notebook.types.VariableStore`)."""

    python_version = ""

    def __init__(self, connection: KernelConnection, *, module_bytes: int = 0) -> None:
        self._connection = connection
        #: How much of the project's modules may be sent; 0 if replicas see the project.
        self._module_bytes = module_bytes
        #: What the kernel needs to know about the values that it was sent.
        self.returned: dict[str, Any] = {}

    def write_pickles(
        self, names: Sequence[str], directory: Path, *, limit: int
    ) -> list[SentVariable]:
        """See :class:`~danlu.notebook.types.VariableStore`."""
        self.python_version, variables = self._connection.receive_pickles(
            names, directory, limit=limit
        )
        return variables

    def write_modules(self, names: Sequence[str], directory: Path, *, limit: int) -> None:
        """See :class:`~danlu.notebook.types.VariableStore`."""
        limit = min(limit, self._module_bytes)
        asked = {*sys.stdlib_module_names, "danlu"}
        new = {name.partition(".")[0] for name in names} - asked
        while self._module_bytes and new:
            asked |= new
            files = self._connection.receive_modules(
                sorted(new), PROJECT_DIRECTORY, directory, limit=limit
            )
            limit -= sum(file.stat().st_size for file in files)
            # A package's relative imports are within it, and it is complete.
            trees = [parse_source(file.read_bytes()) for file in files if file.suffix == ".py"]
            imports = {name for tree in trees if tree is not None for name in find_imports(tree)}
            new = {name.partition(".")[0] for name in imports} - asked

    def find_kind(self, name: str) -> Literal["variable", "module", ""]:
        """See :class:`~danlu.notebook.types.VariableStore`."""
        kind = self._connection.ask_texts("kinds", [name]).get(name)
        return "module" if kind == "module" else "variable" if kind else ""

    def set_results(
        self, result: JobResult, names: Sequence[str], *, every: bool, trusted: bool
    ) -> None:
        """Send the encoded values to the kernel, which sets them when its request is done."""
        selected = select_results(result, names, every=every)
        known = {name for data in selected.values() for name in list_returned_names(data)}
        missing = [name for name in names if every and name not in known]
        if missing:
            raise missing_results_error(missing)
        for replica, data in selected.items():
            self._connection.send({"value": replica, "size": len(data)}, data)
        self.returned = {"returns": list(names), "every": every}


class _KernelDisplay:
    """A display publisher of IPython's, and a stream for standard output, of a kernel."""

    def __init__(self, connection: KernelConnection) -> None:
        self._connection = connection

    def publish(
        self, *, data: Mapping[str, str], metadata: object, transient: Any, update: bool
    ) -> None:
        identifier = transient["display_id"]
        self._connection.send({"publish": data, "id": identifier, "update": update})


class _KernelOutput(TextIOBase):
    def __init__(self, connection: KernelConnection) -> None:
        self._connection = connection

    def write(self, text: str) -> int:
        self._connection.send({"write": text})
        return len(text)


class _KernelShell:
    """What :class:`NotebookContext` needs of a shell."""

    def __init__(self, connection: KernelConnection, *, is_rich: bool) -> None:
        self.display_pub = _KernelDisplay(connection)
        self.kernel = self if is_rich else None


def has_cluster_jobs(spec: EnvironmentSpec) -> bool:
    """Return whether an environment's notebooks are in a pod, and their jobs on its cluster."""
    return find_engine(spec.engine).features.is_cluster


class EnvironmentContext(NotebookContext):
    """The context of cells in an environment."""

    def __init__(
        self,
        environment: EnvironmentDirectory,
        request: KernelRequest,
        connection: KernelConnection,
    ) -> None:
        super().__init__(_KernelShell(connection, is_rich=request.rich))
        self._environment = environment
        self._spec = environment.read_spec()
        self._connection = connection
        self._request = request
        self._is_pod = has_cluster_jobs(self._spec)
        self.variables = RemoteVariables(connection, module_bytes=MAX_BYTES if self._is_pod else 0)

    @property
    def values(self) -> VariableStore:
        """The kernel's variables."""
        return self.variables

    @property
    def settings(self) -> Settings:
        """The settings of the environment's supervisor."""
        settings = self._environment.read_settings()
        paths = Paths(Path(settings.config), Path(settings.data), Path(settings.state))
        return load_settings(paths)

    @property
    def directory(self) -> Path:
        """The project on this machine."""
        return Path(self._spec.project)

    @property
    def search_path(self) -> Sequence[str]:
        """Nothing: replicas see the project or are sent it, and no files are read for a kernel."""
        return ()

    @property
    def working_directory(self) -> str:
        """The kernel's, if the project has the same place in replicas."""
        return "" if self._is_pod else self._request.directory

    @property
    def served_directory(self) -> Path | None:
        """None: logs are on the host."""
        return None

    @property
    def log_file(self) -> Path:
        """Where this process reports its own failures."""
        return self._environment.directory / BRIDGE_LOG

    def _find_displays(self, path: Path) -> tuple[Path, bool] | None:
        found = super()._find_displays(path)
        # They are shown where the environment's own code shows what it likes.
        return None if found is None else (found[0], True)

    def jobs(self, on: str = "") -> JobBackend:
        """Return the jobs of the environment."""
        if on not in ("", self._context_name or "local"):
            raise _refusal_error(f"--on {on}")
        spec = self._spec
        if self._is_pod:
            # The HTTP client takes longer to import than a job on this machine to start.
            from danlu.notebook.pod_jobs import PodJobs

            return PodJobs(self._environment)
        if not find_engine(spec.engine).features.mounts_files:
            raise UsageError(
                f"environment {spec.name} has only a copy of the project, so its notebook cannot"
                " start jobs",
                hint="`danlu train --on CONTEXT`, or a notebook on this machine with"
                " `%%distributed --on CONTEXT --env build.envd`",
            )
        return EnvironmentJobs(self.settings.paths, spec.name, spec.image, self.directory)

    @property
    def _context_name(self) -> str:
        """What ``--on`` calls the cluster of a pod; empty on this machine."""
        return self._spec.engine if self._is_pod else ""

    def confine(self, cell: Cell) -> Cell:
        """Return the cell with the environment's image.

        Raises :class:`UsageError` if it asks for other files or images of this machine.
        """
        options = cell.options
        for name in ("env", "image", "volumes"):
            if getattr(options, name):
                raise _refusal_error(f"--{name.removesuffix('s')}")
        most = self.settings.config.transfer_bytes
        if options.limit is not None and options.limit > most:
            raise UsageError(
                f"--limit is more than this machine allows ({format_size(most)})",
                hint="raise `transfer_limit` in the configuration of danlu on the host",
            )
        confined = replace(
            options,
            image=self._find_image(),
            on=self._context_name,
            modules=options.modules if self._is_pod else (),
            trust_results=False,
        )
        return replace(cell, options=confined)

    def _find_image(self) -> str:
        """Return the environment's image, as replicas find it."""
        if not self._is_pod:
            return self._spec.image
        return read_settings(self._environment).image

    def check_syntax(self, cell: Cell) -> Cell:
        """Check the code, by the kernel's Python if this one does not know its syntax."""
        try:
            check_code(cell.code)
        except UsageError:
            if not self._connection.ask_texts("syntax", [cell.code]).get(cell.code):
                raise
            return replace(cell, is_checked=True)
        return cell

    def _find_texts(self, names: Sequence[str]) -> Mapping[str, str]:
        return self._connection.ask_texts("texts", names)


def _refusal_error(option: str) -> UsageError:
    return UsageError(
        f"{option} cannot be used in an environment's notebook: its jobs run where the environment"
        " does, in its image",
        hint=_GUIDE,
    )


def serve_kernel(connection: KernelConnection, environment: EnvironmentDirectory) -> None:
    """Do what a kernel asks for, and wait until an interrupted job has stopped."""
    try:
        request = connection.read_request()
        context = EnvironmentContext(environment, request, connection)
        sys.stdout = _KernelOutput(connection)
        connection.start_reading()
        message = _run_to_end(request, context)
        # The kernel ends the connection when it has the message.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        connection.send(message)
    except (InvalidMessage, OSError, KeyboardInterrupt) as error:
        print(f"danlu: a kernel's request ended: {error}", file=sys.stderr)


def _run_to_end(request: KernelRequest, context: EnvironmentContext) -> dict[str, Any]:
    """Return the message that ends the request."""
    try:
        with hide_traceback():
            done = _run_request(request, context)
        return {"done": done, **context.variables.returned}
    except (DanluError, KeyboardInterrupt) as error:
        background_loop.wait_for_cleanup()
        # Set by hide_traceback.
        lines = error._render_traceback_()  # type: ignore[union-attr]
        return {"error": describe_error(error, lines)}
    except InvalidMessage:
        raise
    except Exception as error:
        traceback.print_exc()
        failure = OutsideError(
            f"danlu failed on the host: {type(error).__name__}: {error}",
            hint=f"see {context.log_file}",
        )
        return {"error": describe_error(failure, render_error(failure))}


def _run_request(request: KernelRequest, context: EnvironmentContext) -> Any:
    match request.request:
        case "is_job":
            return is_job_cell(request.text)
        case "jobs":
            jobs_magic.run_jobs_magic(_drop_trust(request.text), context, context.show)
        case "complete":
            return jobs_magic.complete_arguments(request.text, context)
        case "cell":
            cell = read_job_cell(request.text, context)
            if cell is not None:
                cells.run_cell(context.check_syntax(context.confine(cell)), context)
    return None


def _drop_trust(line: str) -> str:
    """Remove the flag that unpickles results, which the kernel does anyway, and we never do."""
    try:
        return shlex.join(word for word in shlex.split(line) if word != jobs_magic.TRUST_FLAG)
    except ValueError:
        return line
