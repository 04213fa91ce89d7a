"""Job cells of a notebook in a pod: pods of its cluster, the published fake with danlu's operator.

The kernel's side is the extension itself, in a thread; its connection is relayed as in a pod.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from danlu.engine.environment_directory import (
    EngineSettings,
    EnvironmentDirectory,
    EnvironmentSpec,
)
from danlu.engine.kubernetes.settings import PodSettings, write_settings
from danlu.engine.supervisor_spawn import SETTINGS_FILE
from danlu.errors import UsageError
from danlu.jobs.kubernetes.client import KubernetesJobs
from danlu.jobs.kubernetes.objects import job_resource
from danlu.jobs.types import ContainerImage, Submission
from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig
from danlu.notebook import background_loop, cells
from danlu.notebook.environment_cells import EnvironmentContext
from danlu.notebook.errors import CellFailed
from danlu.notebook.input_transformer import DISTRIBUTED_MAGIC
from danlu.notebook.inside import extension
from danlu.notebook.kernel_connection import KernelConnection
from danlu.notebook.magics import read_job_cell
from danlu.notebook.pod_jobs import PodJobs
from danlu.training.names import SUBMITTER_LEASE_ANNOTATION, submitter_lease_name
from danlu.training.registry import find_framework
from danlu.training.types import Job
from danlu.util.json_codec import encode
from tests.jobs.containers.engine_rig import paths_of
from tests.jobs.kubernetes.support import JobNamespace, job, kubeconfig, open_site_in_threads
from tests.notebook.interrupts import until

IMAGE = "registry.example/digits@sha256:" + "1" * 64
POD = "danlu-digits-0"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobNamespace]:
    with open_site_in_threads(tmp_path / "pods", reports=True) as site:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(site, tmp_path / "kubeconfig")))
        yield site


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project in the pod, where the kernel runs."""
    project = tmp_path / "workspace"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.setattr("danlu.notebook.environment_cells.PROJECT_DIRECTORY", str(project))
    return project


@pytest.fixture
def environment(tmp_path: Path) -> EnvironmentDirectory:
    """An environment in a pod. The host has another copy of the project, which is empty."""
    host = tmp_path / "host"
    host.mkdir()
    made = EnvironmentDirectory(tmp_path / "home" / "environments" / "digits")
    made.directory.mkdir(parents=True)
    spec = EnvironmentSpec("digits", "sha256:" + "0" * 64, datetime.now(UTC), str(host))
    made.write_spec(replace(spec, engine="kubernetes", target="build.envd:build"))
    paths = paths_of(tmp_path / "home")
    settings = EngineSettings(str(paths.config), str(paths.data), str(paths.state))
    (made.directory / SETTINGS_FILE).write_bytes(encode(settings))
    write_settings(made, PodSettings(POD, "", "default", IMAGE))
    return made


class PodKernel:
    """A kernel's shell, and the relay between its extension and the host."""

    def __init__(self, directory: Path) -> None:
        self.user_ns: dict[str, Any] = {}
        self.display_pub = SimpleNamespace(publish=lambda **_: None)
        self._listener = socket.create_server(
            str(directory / extension.SOCKET), family=socket.AF_UNIX
        )

    def run(self, environment: EnvironmentDirectory, options: str, code: str) -> None:
        """Run a cell as the bridge's process does, while the extension waits for its end."""
        text = f"%%{DISTRIBUTED_MAGIC} --framework pytorch {options}\n{code}"
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(self._wait_for_cell, text)
            kernel, _ = self._listener.accept()
            host, relay = socket.socketpair()
            threads = [
                threading.Thread(target=_relay_frames, args=(kernel, relay)),
                threading.Thread(target=_relay_bytes, args=(relay, kernel)),
            ]
            for thread in threads:
                thread.start()
            try:
                # The relay's end interrupts the bridge's process; here that is pytest.
                _run_on_host(KernelConnection(host, interrupt=lambda: None), environment)
            finally:
                host.shutdown(socket.SHUT_RDWR)
                for thread in threads:
                    thread.join()
                for end in (host, relay, kernel):
                    end.close()
            waiting.result()

    def _wait_for_cell(self, text: str) -> None:
        extension.HostConnection("cell", text, self).wait_for_end()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


def _relay_frames(kernel: socket.socket, relay: socket.socket) -> None:
    while data := kernel.recv(1 << 16):
        relay.sendall(len(data).to_bytes(4, "big") + data)


def _relay_bytes(relay: socket.socket, kernel: socket.socket) -> None:
    while data := relay.recv(1 << 16):
        kernel.sendall(data)
    kernel.shutdown(socket.SHUT_RDWR)


def _run_on_host(connection: KernelConnection, environment: EnvironmentDirectory) -> None:
    request = connection.read_request()
    context = EnvironmentContext(environment, request, connection)
    connection.start_reading()
    cell = read_job_cell(request.text, context)
    assert cell is not None
    cells.run_cell(context.confine(cell), context)
    connection.send({"done": None, **context.variables.returned})


@pytest.fixture
def kernel(
    tmp_path: Path, project: Path, site: JobNamespace, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PodKernel]:
    monkeypatch.setenv(extension.VARIABLE, str(tmp_path))
    made = PodKernel(tmp_path)
    yield made
    made.close()
    until(lambda: not background_loop.has_pending_cleanup(), limit=60)


def list_objects(site: JobNamespace) -> list[Any]:
    async def read() -> Sequence[Any]:
        async with Client(ClusterConfig(server=site.client.config.server)) as client:
            return (await client.list(job_resource(find_framework("pytorch")))).items

    return list(asyncio.run(read()))


def test_a_cell_runs_as_pods_of_the_environments_image(
    kernel: PodKernel, site: JobNamespace, environment: EnvironmentDirectory, project: Path
) -> None:
    (project / "beside9.py").write_text("import below9.deep\ndef twice(x): return below9.deep.n*x")
    (project / "below9").mkdir()
    (project / "below9" / "__init__.py").touch()
    (project / "below9" / "deep.py").write_text("from .number import n\n")
    (project / "below9" / "number.py").write_text("n = 2\n")
    kernel.user_ns["x"] = 21
    code = "import json, beside9\ny = beside9.twice(x)\n"
    kernel.run(environment, "--worker 2 --send x --return y --name cell", code)
    assert kernel.user_ns["y"] == 42
    (found,) = list_objects(site)
    pod = found.spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert pod["containers"][0]["image"] == IMAGE
    assert pod["automountServiceAccountToken"] is False
    assert found.submitted_labels["environment"] == POD
    # The operator stops the job if the host, or its link to the cluster, is gone.
    assert found.metadata.annotations[SUBMITTER_LEASE_ANNOTATION] == submitter_lease_name("cell")


def test_an_exception_of_a_pod_has_the_cells_line(
    kernel: PodKernel, environment: EnvironmentDirectory
) -> None:
    environment.write_spec(replace(environment.read_spec(), context="team"))
    with pytest.raises(CellFailed) as error:
        kernel.run(environment, "--worker 1", "x = 1\nx / 0\n")
    assert error.value.hint.endswith("--command worker-0 --on team")
    assert (error.value.line, error.value.reason) == (3, "ZeroDivisionError: division by zero")


def test_only_files_of_the_project_are_modules_of_it(project: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.py"
    secret.write_text("key = 1")
    (project / "linked7.py").symlink_to(secret)
    (project / ".venv/site-packages").mkdir(parents=True)
    (project / ".venv/site-packages/installed7.py").touch()
    (project / "data7").mkdir()
    (project / "data7" / "table.csv").touch()
    (project / "data7" / "reader.py").touch()
    (project / "data7" / "__pycache__").mkdir()
    (project / "data7" / "__pycache__" / "reader.py").touch()
    sys.path.append(str(project / ".venv/site-packages"))
    try:
        found = {
            name: [path for path, _ in extension.find_module_files(name, str(project))]
            for name in ("linked7", "installed7", "data7", "json", "absent7", "__main__")
        }
    finally:
        sys.path.pop()
    assert {name: paths for name, paths in found.items() if paths} == {"data7": ["data7/reader.py"]}


def test_modules_that_are_too_large_are_named(
    kernel: PodKernel, environment: EnvironmentDirectory, project: Path
) -> None:
    (project / "large7").mkdir()
    (project / "large7" / "__init__.py").touch()
    with (project / "large7" / "weights").open("wb") as file:
        file.truncate(1 << 20)
    with pytest.raises(UsageError, match="module large7: its files are too large") as caught:
        kernel.run(environment, "--worker 1", "import large7\n")
    assert caught.value.hint.startswith("modules may have 922 kB in all: io.copy")


# -- what a notebook in a pod may not do -----------------------------------------------------------


def test_other_jobs_of_the_namespace_do_not_exist_for_it(
    site: JobNamespace, environment: EnvironmentDirectory
) -> None:
    jobs = PodJobs(environment)
    asyncio.run(_submit(site, "other"))
    assert asyncio.run(site.jobs.names()) == ["other"]
    assert asyncio.run(jobs.names()) == []
    assert asyncio.run(jobs.views()) == []
    for act in (jobs.view, jobs.stop, jobs.remove, jobs.result):
        with pytest.raises(UsageError, match="job 'other' not found") as caught:
            asyncio.run(act("other"))
        assert "existing" not in caught.value.hint


async def _submit(site: JobNamespace, name: str) -> None:
    await KubernetesJobs(ClusterConfig(server=site.fake.url)).submit(job(name))


@pytest.mark.parametrize(
    "change",
    [
        {"images": {}},
        {"images": {"a": ContainerImage("", IMAGE), "b": ContainerImage("", "debian")}},
        {"objects": {"ConfigMap/a": {}}},
        {"code": {"key": Path("/etc/hostname")}},
    ],
)
def test_no_job_sees_more_than_the_environment(
    site: JobNamespace, environment: EnvironmentDirectory, change: dict[str, Any]
) -> None:
    allowed = Submission(Job("a", "PyTorchJob", {}), Path("/"), {"a": ContainerImage("", IMAGE)})
    with pytest.raises(UsageError, match="run in its image"):
        asyncio.run(PodJobs(environment).submit(replace(allowed, **change)))
