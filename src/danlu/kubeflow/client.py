"""The SDK's client with a backend that runs TrainJobs on this machine."""

from __future__ import annotations

import copy
import dataclasses
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypedDict, Unpack

from anyio.from_thread import start_blocking_portal
from kubeflow.trainer import TrainerClient as KubeflowClient
from kubeflow.trainer.backends.kubernetes import utils
from kubeflow.trainer.backends.kubernetes.backend import KubernetesBackend
from kubeflow.trainer.constants import constants
from kubeflow.trainer.types import types

from danlu.engine.settings import load_settings
from danlu.jobs.report import ProgressBarFilter, decode_log_line
from danlu.jobs.types import LogLine
from danlu.kubeflow.local_api import NAMESPACE, LocalApi
from danlu.sources.pypi.indexes import IndexSettings
from danlu.sources.pypi.uv import Uv
from danlu.submission.options import TrainOptions
from danlu.submission.run import run_in_portal

#: In the directory of the files that are sent with a job.
_PACKAGES = "packages"
_FILES = "$DANLU_FILES"
#: What precedes the name of the function's file in the SDK's command, and in ours.
_FUNCTION_FILE = '"{func_file}"'
#: Programs of a function import packages that were installed for it, and the user's modules.
_SEARCH_PATHS = (
    f'PATH="{_FILES}/{_PACKAGES}/bin:$PATH"'
    f' PYTHONPATH="$PWD:{_FILES}/{_PACKAGES}${{{{PYTHONPATH:+:$PYTHONPATH}}}}"'
)


class LocalOptions(TypedDict, total=False):
    """Where the jobs of a client run; as for :func:`danlu.train`.

    Without ``env``, ``image`` and ``host_python`` a job runs as processes of this Python, or in an
    image if its trainer or a runtime of ``runtimes`` (files) names one. ``directory`` is the
    working directory, by default the current one.
    """

    env: str
    image: str
    host_python: bool
    volumes: Sequence[str]
    claims: dict[str, str]
    directory: str
    runtimes: Sequence[str]


class TrainerClient(KubeflowClient):
    """Kubeflow's client for the jobs of this machine."""

    def __init__(self, backend_config: object = None, **options: Unpack[LocalOptions]) -> None:
        """Create a client; a ``backend_config`` of another backend is ignored."""
        self.backend = LocalBackend(**options)


class LocalBackend(KubernetesBackend):
    """Runs TrainJobs on this machine.

    It is Kubeflow's backend for clusters, whose options (``Labels``, ``RuntimePatch`` …) accept no
    other; only the objects it reads and writes are danlu's jobs.
    """

    def __init__(self, **options: Unpack[LocalOptions]) -> None:
        # Not that of the superclass, which connects to a cluster.
        keywords: dict[str, Any] = dict(options)
        directory = Path(keywords.pop("directory", ".")).absolute()
        keywords["further_files"] = tuple(map(str, keywords.pop("runtimes", ())))
        train_options = TrainOptions.from_keywords(directory, python=sys.executable, **keywords)
        self._use_api(LocalApi(train_options, load_settings()))
        self.namespace = NAMESPACE

    def _use_api(self, api: LocalApi) -> None:
        self._api = self.custom_api = self.core_api = api

    def train(
        self,
        runtime: str | types.Runtime | None = None,
        initializer: types.Initializer | None = None,
        trainer: types.CustomTrainer | types.CustomTrainerContainer | None = None,
        options: list[Any] | None = None,
    ) -> str:
        """Start a TrainJob, which outlives this process, and return its name."""
        if isinstance(trainer, types.BuiltinTrainer):
            raise ValueError(
                "BuiltinTrainer is not supported on this machine: danlu has no recipes of"
                " torchtune; pass the training as a CustomTrainer"
            )
        if not isinstance(runtime, types.Runtime):
            runtime = self.get_runtime(runtime or constants.DEFAULT_TRAINING_RUNTIME)
        with TemporaryDirectory(prefix="danlu-trainjob-") as place:
            sender = copy.copy(self)
            sender._use_api(dataclasses.replace(self._api, outbox=Path(place)))
            if isinstance(trainer, types.CustomTrainer):
                runtime, trainer = sender._send_function(runtime, trainer)
            name: str = super(LocalBackend, sender).train(runtime, initializer, trainer, options)
        return name

    def _send_function(
        self, runtime: types.Runtime, trainer: types.CustomTrainer
    ) -> tuple[types.Runtime, types.CustomTrainer]:
        """Write the function to a file that is sent with the job, instead of through a shell.

        The SDK's command writes it in the working directory: here that has the user's files, and
        all nodes share it.
        """
        *shell, text = runtime.trainer.command  # a shell, which mpirun may start
        last_line = text.rstrip().rpartition("\n")[2]
        if not last_line.endswith(_FUNCTION_FILE):  # the user replaced the command
            return runtime, trainer
        entry_point = last_line.removesuffix(_FUNCTION_FILE).strip()
        if trainer.packages_to_install and self._api.options.env:
            raise ValueError(
                "packages_to_install cannot be combined with env: list the packages in"
                f" {self._api.options.env}, and every node has them without an installation"
            )
        files = self._api.files
        text = _render_command(runtime, trainer, (*shell, "{func_file}\n{func_code}"))[-1]
        name, _, code = text.partition("\n")
        file = files / name.lstrip("/")  # with mpirun it is one of a home directory
        file.parent.mkdir(parents=True)
        file.write_text(code, encoding="utf-8")
        if self._api.runs_on_host(runtime.name, trainer.image):
            if entry_point == "python":
                entry_point = shlex.quote(sys.executable).replace("{", "{{").replace("}", "}}")
            if trainer.packages_to_install:
                _install_packages(trainer, files / _PACKAGES, load_settings().paths.cache)
                trainer = dataclasses.replace(trainer, packages_to_install=None)
        script = f'{_SEARCH_PATHS} {entry_point} "{_FILES}/{{func_file}}"'
        return _replace_command(runtime, (*shell, script)), trainer

    def wait_for_job_status(
        self,
        name: str,
        status: Set[str] = frozenset({constants.TRAINJOB_COMPLETE}),
        timeout: int = 600,
        polling_interval: int = 2,
        callbacks: list[Callable[[types.TrainJob], None]] | None = None,
    ) -> types.TrainJob:
        """Wait until a job has one of these states, and return it."""
        # A job can be complete before it is looked at again.
        more = {constants.TRAINJOB_COMPLETE} if constants.TRAINJOB_RUNNING in status else set()
        return super().wait_for_job_status(
            name, {*status, *more}, timeout, polling_interval, callbacks
        )

    def get_job_logs(
        self, name: str, follow: bool = False, step: str = f"{constants.NODE}-0"
    ) -> Iterator[str]:
        """Yield the lines of a step; with ``follow``, until the job is finished."""
        self.get_job(name)  # raises the SDK's error if it does not exist
        with start_blocking_portal() as portal:
            lines, bars = self._api.read_logs(name, step, follow=follow), ProgressBarFilter()
            while (line := portal.call(_read_next, lines)) is not None:
                yield from map(decode_log_line, bars.feed(line))
            yield from map(decode_log_line, bars.flush())


async def _read_next(lines: AsyncIterator[LogLine]) -> LogLine | None:
    return await anext(lines, None)


def _replace_command(runtime: types.Runtime, command: tuple[str, ...]) -> types.Runtime:
    runtime = copy.deepcopy(runtime)
    runtime.trainer.set_command(command)
    return runtime


def _render_command(
    runtime: types.Runtime, trainer: types.CustomTrainer, command: tuple[str, ...]
) -> list[str]:
    """Return the words of ``command`` with what the SDK makes of the function."""
    runtime = _replace_command(runtime, command)
    words: list[str] = utils.get_command_using_train_func(
        runtime, trainer.func, trainer.func_args, trainer.pip_index_urls, None
    )
    return words


def _install_packages(trainer: types.CustomTrainer, directory: Path, cache: Path) -> None:
    """Install the packages of a function for its nodes only, not into the user's Python."""
    first, *further = trainer.pip_index_urls
    given = trainer.pip_index_urls != constants.DEFAULT_PIP_INDEX_URLS
    indexes = IndexSettings(default=first, extra=tuple(further)) if given else IndexSettings()
    uv = Uv(cache / "uv", directory.parent, indexes=indexes)
    options = ["--target", str(directory), *trainer.packages_to_install]
    code, _, stderr = run_in_portal(partial(uv.run, ("pip", "install"), options))
    if code:
        names = ", ".join(trainer.packages_to_install)
        raise RuntimeError(f"cannot install {names}: {stderr.strip()}")
