"""What a kernel inside an environment may send to the host, and what the host does not accept."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from danlu.engine.environment_directory import (
    EngineSettings,
    EnvironmentDirectory,
    EnvironmentSpec,
    ServiceSpec,
)
from danlu.engine.kubernetes.settings import PodSettings, write_settings
from danlu.engine.supervisor_spawn import SETTINGS_FILE
from danlu.errors import UsageError
from danlu.jobs.local.file_exchange import may_unpickle
from danlu.jobs.types import ContainerImage, JobResult, JobView, Submission
from danlu.notebook import environment_bridge
from danlu.notebook.bundle import write_bundle
from danlu.notebook.environment_cells import (
    EnvironmentContext,
    EnvironmentJobs,
    RemoteVariables,
)
from danlu.notebook.kernel_connection import (
    MAX_MESSAGE,
    InvalidMessage,
    KernelConnection,
    KernelRequest,
)
from danlu.notebook.parser import parse_distributed
from danlu.notebook.variables import UserNamespace
from danlu.replica_runtime import encoding
from danlu.training.types import Job, JobStatus
from danlu.util.json_codec import encode
from tests.jobs.containers.engine_rig import image, paths_of

IMAGE = "sha256:" + "0" * 64


class Kernel:
    """The other end of a connection, which may send anything."""

    def __init__(self) -> None:
        self.socket, self.relay = socket.socketpair()
        self.interrupted = threading.Event()
        self.connection = KernelConnection(self.relay, self.interrupted.set)

    def send_frame(self, data: bytes) -> None:
        """Send bytes as the program that relays a Unix socket does."""
        self.socket.sendall(len(data).to_bytes(4, "big") + data)

    def send(self, message: Any, data: bytes = b"") -> None:
        """Send a message."""
        text = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.send_frame(len(text).to_bytes(4, "big") + text + data)

    def receive(self) -> tuple[Any, bytes]:
        """Return the next message of the host, and its data."""
        message = json.loads(self._receive_exactly(int.from_bytes(self._receive_exactly(4), "big")))
        return message, self._receive_exactly(message.get("size", 0))

    def _receive_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            assert chunk
            data += chunk
        return data


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel()
    made.socket.settimeout(30)
    yield made
    made.socket.close()
    made.relay.close()


# -- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"no JSON",
        b"[]",
        b'{"request": "exec", "text": "id"}',
        b'{"request": "cell"}',
        b'{"request": "cell", "text": 1}',
        b'{"request": "cell", "text": "", "directory": "' + b"a" * 5000 + b'"}',
        b'{"request": "cell", "text": "\xff"}',
        b"[" * 100_000,
    ],
)
def test_an_invalid_request_is_refused(kernel: Kernel, message: bytes) -> None:
    kernel.send(message)
    with pytest.raises(InvalidMessage):
        kernel.connection.read_request()


def test_sizes_of_frames_and_messages_are_limited(kernel: Kernel) -> None:
    kernel.send_frame((MAX_MESSAGE + 1).to_bytes(4, "big"))
    with pytest.raises(InvalidMessage, match="too long"):
        kernel.connection.read_request()
    kernel.socket.sendall((1 << 30).to_bytes(4, "big"))
    with pytest.raises(InvalidMessage, match="frame"):
        kernel.connection.read_request()


def test_a_request_in_many_frames_is_read(kernel: Kernel) -> None:
    text = json.dumps({"request": "cell", "text": "pass", "rich": True}).encode()
    for byte in len(text).to_bytes(4, "big") + text:
        kernel.send_frame(bytes([byte]))
    assert kernel.connection.read_request() == KernelRequest("cell", "pass", rich=True)


@pytest.mark.parametrize("message", [{"interrupt": True}, {"unknown": 1}, {"variable": "x"}, []])
def test_interrupts_and_the_end_of_a_kernel_interrupt_the_request(
    kernel: Kernel, message: Any
) -> None:
    kernel.connection.start_reading()
    kernel.send(message)
    assert kernel.interrupted.wait(30)


def test_the_end_of_the_kernel_interrupts_the_request(kernel: Kernel) -> None:
    kernel.connection.start_reading()
    kernel.socket.close()
    assert kernel.interrupted.wait(30)


# -- variables ------------------------------------------------------------------------------------


def answer_with(kernel: Kernel, *messages: tuple[Any, bytes]) -> None:
    """Send messages once the host has asked."""

    def answer() -> None:
        with suppress(OSError):  # the host has refused one
            kernel.receive()
            for message, data in messages:
                kernel.send(message, data)

    threading.Thread(target=answer, daemon=True).start()


DONE: tuple[Any, bytes] = ({"answer": {"python": "3.12.1"}}, b"")


def test_pickles_become_files_and_are_not_loaded(kernel: Kernel, tmp_path: Path) -> None:
    kernel.connection.start_reading()
    hostile = pickle.dumps(Bomb(tmp_path / "exploded"))
    answer_with(kernel, ({"variable": "x", "size": len(hostile)}, hostile), DONE)
    python, variables = kernel.connection.receive_pickles(["x"], tmp_path / "values", limit=1000)
    assert (python, [item.name for item in variables]) == ("3.12.1", ["x"])
    assert (tmp_path / "values" / "x.pickle").read_bytes() == hostile
    assert not (tmp_path / "exploded").exists()


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    "message",
    [
        {"variable": "../../escaped", "size": 1},
        {"variable": "/etc/escaped", "size": 1},
        {"variable": "y", "size": 1},
        {"variable": "x", "size": 1001},
        {"variable": "x", "size": -1},
        {"variable": "x", "size": "1"},
        {"variable": "x", "size": 1, "modules": ["m"] * 10_001},
        {"variable": "x", "size": 1, "libraries": {"m": "1"}},
        {"answer": {"python": "3.12.1"}},
        {"answer": {"python": "$(id)"}},
        {"answer": 1},
        {"unknown": 1},
    ],
)
def test_variables_that_were_not_asked_for_are_refused(
    kernel: Kernel, tmp_path: Path, message: dict[str, Any]
) -> None:
    kernel.connection.start_reading()
    answer_with(kernel, (message, b"1"), DONE)
    with pytest.raises(InvalidMessage):
        kernel.connection.receive_pickles(["x"], tmp_path / "values", limit=1000)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_all_variables_together_are_limited(kernel: Kernel, tmp_path: Path) -> None:
    kernel.connection.start_reading()
    parts = [({"variable": name, "size": 600}, b"1" * 600) for name in ("x", "y")]
    answer_with(kernel, *parts, DONE)
    with pytest.raises(InvalidMessage, match="exceed"):
        kernel.connection.receive_pickles(["x", "y"], tmp_path / "values", limit=1000)


@pytest.mark.parametrize(
    "message",
    [
        {"file": "../module.py", "size": 1},
        {"file": "/module.py", "size": 1},
        {"file": "module/../../module.py", "size": 1},
        {"file": "module//a.py", "size": 1},
        {"file": "module/..", "size": 1},
        {"file": "other.py", "size": 1},
        {"file": "module.py", "size": 1001},
        {"file": "module.py", "size": -1},
        {"variable": "module", "size": 1},
    ],
)
def test_files_that_are_not_of_a_module_that_was_asked_for_are_refused(
    kernel: Kernel, tmp_path: Path, message: dict[str, Any]
) -> None:
    kernel.connection.start_reading()
    answer_with(kernel, (message, b"1"), ({"answer": {}}, b""))
    directory = tmp_path / "modules"
    directory.mkdir()
    with pytest.raises(InvalidMessage):
        kernel.connection.receive_modules(["module"], "/workspace", directory, limit=1000)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_file_of_a_module_is_not_replaced(kernel: Kernel, tmp_path: Path) -> None:
    kernel.connection.start_reading()
    file = ({"file": "module/a.py", "size": 1}, b"1")
    answer_with(kernel, file, file, ({"answer": {}}, b""))
    with pytest.raises(InvalidMessage, match="sent already"):
        kernel.connection.receive_modules(["module"], "/workspace", tmp_path, limit=1000)


def test_texts_of_a_kernel_are_shown_without_control_characters(
    kernel: Kernel, tmp_path: Path
) -> None:
    kernel.connection.start_reading()
    refused = {"refused": "x", "reason": "\x1b[31mred\x1b[0m", "hint": "a\nb"}
    answer_with(kernel, ({"answer": refused}, b""))
    with pytest.raises(UsageError) as caught:
        kernel.connection.receive_pickles(["x"], tmp_path, limit=10)
    assert "\x1b" not in caught.value.message
    assert "\n" not in caught.value.hint


# -- jobs -----------------------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path: Path) -> EnvironmentDirectory:
    """An environment of a build file, as its supervisor finds it."""
    made = EnvironmentDirectory(tmp_path / "home" / "environments" / "digits")
    made.directory.mkdir(parents=True)
    paths = paths_of(tmp_path / "home")
    notebook = {"DANLU_NOTEBOOK": "/tmp/danlu-notebook-1"}
    services = (ServiceSpec("jupyter", ("jupyter", "lab"), notebook),)
    spec = EnvironmentSpec("digits", IMAGE, datetime.now(UTC), str(tmp_path), services=services)
    made.write_spec(replace(spec, target="build.envd:build"))
    settings = EngineSettings(str(paths.config), str(paths.data), str(paths.state))
    (made.directory / SETTINGS_FILE).write_bytes(encode(settings))
    return made


@pytest.mark.parametrize(
    "options",
    ["--image debian", "--env build.envd", "--on kubernetes", "-v /:/host", "--limit 1000GB"],
)
def test_a_cell_cannot_ask_for_other_files_or_images_of_the_host(
    environment: EnvironmentDirectory, kernel: Kernel, options: str
) -> None:
    context = EnvironmentContext(environment, KernelRequest("cell", ""), kernel.connection)
    cell = parse_distributed(f"--framework pytorch {options}", "pass")
    with pytest.raises(UsageError) as caught:
        context.jobs(context.confine(cell).options.on or cell.options.on)
    assert options.split()[0].replace("-v", "--volume") in caught.value.message
    assert caught.value.hint


def test_a_cell_in_a_pod_gets_the_image_that_its_nodes_pull(
    environment: EnvironmentDirectory, kernel: Kernel
) -> None:
    environment.write_spec(replace(environment.read_spec(), engine="kubernetes"))
    write_settings(environment, PodSettings("digits-0", "prod", "team", "registry/digits@x"))
    context = EnvironmentContext(environment, KernelRequest("cell", ""), kernel.connection)
    cell = context.confine(parse_distributed("--framework pytorch --on kubernetes", "pass"))
    assert (cell.options.image, cell.options.on) == ("registry/digits@x", "kubernetes")
    assert context.working_directory == ""
    for elsewhere in ("local", "kubernetes:other/namespace"):
        with pytest.raises(UsageError, match=f"--on {elsewhere} cannot be used"):
            context.jobs(elsewhere)


def test_the_kernels_python_decides_about_syntax_that_the_host_does_not_know(
    environment: EnvironmentDirectory, kernel: Kernel, tmp_path: Path
) -> None:
    context = EnvironmentContext(environment, KernelRequest("cell", ""), kernel.connection)
    kernel.connection.start_reading()
    cell = parse_distributed("--framework pytorch --return x", "x = = 1")
    answer_with(kernel, ({"answer": {cell.code: "valid"}}, b""))
    checked = context.check_syntax(cell)
    assert checked.is_checked
    write_bundle(checked, UserNamespace({}), target=tmp_path / "sent", place=tmp_path, path=())
    answer_with(kernel, ({"answer": {}}, b""))
    with pytest.raises(UsageError, match="invalid Python on line 2"):
        context.check_syntax(cell)


def test_a_cell_gets_the_environments_image_and_no_files_of_the_host(
    environment: EnvironmentDirectory, kernel: Kernel
) -> None:
    context = EnvironmentContext(environment, KernelRequest("cell", ""), kernel.connection)
    words = "--framework pytorch --module secrets --trust-results --on local"
    cell = context.confine(parse_distributed(words, "import module"))
    assert cell.options.image == IMAGE
    assert (cell.options.modules, cell.options.trust_results) == ((), False)
    assert context.search_path == ()


@pytest.mark.parametrize(
    "change",
    [
        {"images": {}},
        {"images": {"a": ContainerImage(IMAGE), "b": ContainerImage("sha256:1")}},
        {"directory": Path("/")},
        {"objects": {"ConfigMap/a": {}}},
    ],
)
def test_no_job_sees_more_than_the_environment(tmp_path: Path, change: dict[str, Any]) -> None:
    jobs = EnvironmentJobs(paths_of(tmp_path), "digits", IMAGE, tmp_path)
    job = Job(name="a", kind="PyTorchJob", replicas={})
    allowed = Submission(job, tmp_path, {"a": ContainerImage(IMAGE)})
    with pytest.raises(UsageError, match="run in its image, with its project"):
        asyncio.run(jobs.submit(replace(allowed, **change)))


def test_results_are_passed_on_and_not_opened(kernel: Kernel, tmp_path: Path) -> None:
    hostile = pickle.dumps(Bomb(tmp_path / "exploded"))
    value = {"form": "pickle", "data": hostile, "modules": [], "libraries": {}, "reason": ""}
    data = bytes(encoding.encode({"python": "3.12.1", "values": {"x": value}}))
    view = JobView("job", "PyTorchJob", "pytorch", "Succeeded", JobStatus())
    variables = RemoteVariables(kernel.connection)
    variables.set_results(JobResult(view, data, {}), ["x"], every=False, trusted=True)
    assert kernel.receive() == ({"value": "", "size": len(data)}, data)
    assert not (tmp_path / "exploded").exists()


def test_results_of_such_jobs_are_not_trusted_in_other_notebooks(tmp_path: Path) -> None:
    job = Job(name="a", kind="PyTorchJob", replicas={})
    submission = Submission(job, tmp_path, {"a": ContainerImage(IMAGE)}, trusted=True)
    assert may_unpickle(submission)
    labels = EnvironmentJobs(paths_of(tmp_path), "digits", IMAGE, tmp_path).labels
    assert not may_unpickle(replace(submission, labels=labels))


@pytest.mark.real
@pytest.mark.needs("busybox")
def test_an_image_that_was_not_built_here_gets_no_bridge(
    environment: EnvironmentDirectory, tmp_path: Path
) -> None:
    home, spec = tmp_path / "home", environment.read_spec()
    own = image(home, metadata={"file": "build.envd"}, Env=["OWN=1"])
    environment.write_spec(replace(spec, image=own))
    assert environment_bridge.find_notebook_directory(environment) == "/tmp/danlu-notebook-1"
    for foreign in (replace(spec, image=image(home)), replace(spec, image=own, target="")):
        environment.write_spec(foreign)
        assert environment_bridge.find_notebook_directory(environment) == ""


def test_the_extension_is_the_same_archive_every_time() -> None:
    assert environment_bridge.pack_extension() == environment_bridge.pack_extension()
