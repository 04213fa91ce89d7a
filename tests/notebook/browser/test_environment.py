"""An environment with a Jupyter server: used in a browser, and as the kernel of another Jupyter."""

from __future__ import annotations

import json
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from jupyter_client.manager import KernelManager

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.sandbox.procfs import find_namespace_members, read_command
from tests.conftest import Danlu, missing_for_real, program_in
from tests.engine.ssh.conftest import process_commands
from tests.notebook.browser.chromium import ChromiumBrowser
from tests.notebook.browser.lab_server import LabServer, write_notebook
from tests.notebook.kernels import (
    run,
    run_alone,
    run_and_read_stdout,
    running,
    wait_for_reply,
)
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.notebook,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(missing_for_real()), reason=missing_for_real()),
]

BUILD = """\
def build():
    base("debian12")
    install.python()
    install.python_packages(["scikit-learn", "matplotlib"])
    config.jupyter()
"""
TRAIN = """\
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(images / 16, labels, random_state=7)
model = LogisticRegression(max_iter=1000).fit(x, y)
print(f"accuracy {model.score(x_test, y_test):.3f} on {len(x_test)} unseen digits")"""
PLOT = """\
import matplotlib.pyplot as plt

figure, axes = plt.subplots(2, 8, figsize=(8, 2.4))
for axis, image, answer in zip(axes.flat, x_test, model.predict(x_test)):
    axis.imshow(image.reshape(8, 8), cmap="gray_r")
    axis.set_title(answer)
    axis.axis("off")"""
LOAD = """\
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)"""
ENSEMBLE = """\
%%distributed --framework pytorch --worker 2 --send x,y --return model --every
import os, time
import danlu
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

part = slice(int(os.environ["RANK"]), None, int(os.environ["WORLD_SIZE"]))
model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=1e-4)
for epoch in range(20):
    model.partial_fit(x[part], y[part], classes=range(10))
    loss = log_loss(y, model.predict_proba(x))
    danlu.report(percentage=5 * (epoch + 1), loss=loss)
    print(f"epoch {epoch + 1}: loss {loss:.3f}", flush=True)
    time.sleep(0.5)"""
SCORES = """\
{replica: round(each.score(x, y), 3) for replica, each in model.items()}"""
#: In the command line of kernels that were not started by the environment's own Jupyter.
KERNEL = "ipykernel_launcher -f /tmp/tmp."
_TERMINAL = "document.querySelector('.jp-Terminal .xterm-helper-textarea')"


@dataclass(frozen=True)
class JupyterEnvironment:
    """A running environment ``digits``, the address that ``danlu up`` printed, and its token."""

    danlu: Danlu
    home: Path
    project: Path
    url: str
    token: str

    @property
    def directory(self) -> EnvironmentDirectory:
        """Where danlu keeps it."""
        return EnvironmentDirectory(self.home / "environments" / "digits")

    @property
    def server(self) -> str:
        """The address of the server, without page and token."""
        return self.url.partition("lab?")[0]

    def runs(self, words: str) -> bool:
        """Return whether the command line of a process inside contains ``words``."""
        container = self.directory.read_state().container or 0
        return any(words in read_command(pid) for pid in find_namespace_members(container))


@pytest.fixture(scope="module")
def environment(
    real_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JupyterEnvironment]:
    project = tmp_path_factory.mktemp("jupyter") / "digits"
    (project / "notebooks").mkdir(parents=True)
    (project / "build.envd").write_text(BUILD)
    write_notebook(project / "digits.ipynb", TRAIN, PLOT)
    danlu = program_in(real_home)
    output = danlu("up", "-d", "-n", "digits", cwd=project, timeout=280)
    try:
        result = re.search(r"http://127\.0\.0\.1:\d+/lab\?token=(\S+)", output.stderr)
        assert result, output.stderr
        made = JupyterEnvironment(danlu, real_home, project, result[0], result[1])
        wait_for(lambda: status_of(f"{made.server}api") == 200)
        yield made
    finally:
        danlu("down", "--grace", "0", "digits", cwd=project)


def status_of(url: str) -> int:
    """Return the status of a response; 0 if nothing listens yet."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


@pytest.fixture
def environment_lab(environment: JupyterEnvironment) -> LabServer:
    """The environment's own JupyterLab."""
    return LabServer(
        environment.server,
        environment.project,
        environment.home,
        environment.directory.log_file("jupyter"),
        token=environment.token,
        exposed=False,
    )


@pytest.mark.needs("chromium")
def test_lab_trains_a_model_and_shows_a_figure(
    environment_lab: LabServer, browser: ChromiumBrowser, album: Path
) -> None:
    notebook = environment_lab.open(browser, "digits.ipynb", height=720)
    notebook.run(0)
    notebook.until(0, "accuracy 0.9", limit=60)
    notebook.run(1)
    notebook.wait_for_end(1, limit=60)
    figure = f"{notebook.output(1)}.querySelector('img').naturalWidth"
    assert notebook.page.wait(figure) > 100
    # JupyterLab's question to newcomers hides a corner.
    notebook.page.evaluate("document.querySelector('.Toastify')?.remove()")
    notebook.page.photograph(album / "jupyter.png")


@pytest.mark.needs("chromium")
def test_lab_trains_on_several_workers(
    environment: JupyterEnvironment,
    environment_lab: LabServer,
    browser: ChromiumBrowser,
    album: Path,
) -> None:
    write_notebook(
        environment.project / "ensemble.ipynb", LOAD, "%load_ext danlu.notebook", ENSEMBLE, SCORES
    )
    notebook = environment_lab.open(browser, "ensemble.ipynb", height=900)
    for number in (0, 1):
        notebook.run(number)
        notebook.wait_for_end(number, limit=60)
    notebook.run(2)
    notebook.until(2, "epoch 9", limit=60)
    assert notebook.page.wait(f"{notebook.output(2)}.querySelector('svg')")
    notebook.page.evaluate("document.querySelector('.Toastify')?.remove()")
    notebook.page.photograph(album / "jupyter-distributed.png")
    notebook.until(2, "succeeded in", limit=60)
    notebook.run(3)
    notebook.until(3, "'worker-1': 0.9", limit=60)


@pytest.mark.needs("chromium")
def test_lab_runs_and_interrupts_cells(
    environment: JupyterEnvironment, environment_lab: LabServer, browser: ChromiumBrowser
) -> None:
    write_notebook(
        environment.project / "interrupts.ipynb",
        "print(6 * 7)",
        "import time\nprint('begun', flush=True)\ntime.sleep(1000)",
        "open('made', 'w').close(); import os; print(os.getcwd())",
    )
    notebook = environment_lab.open(browser, "interrupts.ipynb", height=640)
    notebook.run(0)
    notebook.until(0, "42")
    notebook.run(1)
    notebook.until(1, "begun")
    notebook.interrupt()
    notebook.until(1, "KeyboardInterrupt")
    notebook.wait_for_end(1)  # what is run before is aborted with the cell
    notebook.run(2)
    notebook.until(2, "/workspace")
    result = (environment.project / "made").stat()
    project = environment.project.stat()
    assert (result.st_uid, result.st_gid) == (project.st_uid, project.st_gid)


@pytest.mark.needs("chromium")
def test_lab_opens_a_terminal_in_the_project(
    environment: JupyterEnvironment, browser: ChromiumBrowser
) -> None:
    page = browser.open(environment.url + "&reset")
    card = "document.querySelector('.jp-LauncherCard[title*=\"terminal\"]')"
    page.click(card, limit=45)
    page.wait(_TERMINAL)
    page.click("document.querySelector('.jp-Terminal .xterm-screen')")
    page.type_text("pwd >terminal-directory")
    page.press("Enter")
    content = environment.project / "terminal-directory"
    wait_for(lambda: content.exists() and content.read_text() == "/workspace\n")


@pytest.mark.needs("chromium")
def test_lab_without_the_token_asks_for_it(
    environment: JupyterEnvironment, browser: ChromiumBrowser
) -> None:
    page = browser.open(f"{environment.server}lab", private=True)
    page.wait("location.pathname == '/login' && document.querySelector('#password_input')")


@pytest.mark.parametrize("path", ["api/contents", "api/kernels", "api/terminals", "files/made"])
@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong"])
def test_the_api_refuses_requests_without_the_token(
    environment: JupyterEnvironment, path: str, query: str
) -> None:
    assert status_of(f"{environment.server}api/contents?token={environment.token}") == 200
    with closing(HTTPConnection(urlsplit(environment.server).netloc, timeout=10)) as connection:
        connection.request("GET", f"/{path}{query}")
        response = connection.getresponse()
    location = response.headers.get("Location", "")
    assert response.status == 403 or (response.status == 302 and "/login" in location)


def test_no_command_line_contains_the_token(environment: JupyterEnvironment) -> None:
    commands = process_commands()
    assert any("--ServerApp.root_dir=/workspace" in command for command in commands)
    assert not any(environment.token in command for command in commands)


@pytest.fixture
def kernel(environment: JupyterEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The environment as a kernel of the Jupyter of this Python."""
    prefix = run_alone(tmp_path, monkeypatch)
    install = ("kernel", "install", "--env", "digits", "--prefix", str(prefix))
    environment.danlu(*install, cwd=environment.project)
    return "digits"


def test_kernel_of_a_jupyter_outside_runs_in_the_environment(
    environment: JupyterEnvironment, kernel: str
) -> None:
    with running(kernel, cwd=environment.project / "notebooks") as client:
        assert (
            run_and_read_stdout(client, "import os; print(os.getcwd())") == "/workspace/notebooks"
        )
        assert run_and_read_stdout(client, "import sys; print(sys.executable)") != sys.executable
        mode = "print(oct(os.stat(get_ipython().kernel.config['IPKernelApp']['connection_file'])"
        assert run_and_read_stdout(client, f"{mode}.st_mode))").endswith("600")
        key = client.session.key
        assert not any(key.decode() in command for command in process_commands())
        assert run(client, "1/0").reply["ename"] == "ZeroDivisionError"
        assert run(client, "%load_ext danlu.notebook").reply["status"] == "ok"
        assert "--framework NAME" in run_and_read_stdout(client, "%%distributed --help")
        assert environment.runs(KERNEL)
    wait_for(lambda: not environment.runs(KERNEL))


def test_kernel_of_a_jupyter_outside_is_interrupted_and_killed(
    environment: JupyterEnvironment, kernel: str
) -> None:
    manager = KernelManager(kernel_name=kernel)
    manager.start_kernel(cwd=str(environment.project))
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        begun = environment.project / "begun"
        code = "import subprocess; subprocess.run('touch begun; sleep 1000', shell=True)"
        cell = client.execute(code)
        wait_for(begun.exists)
        assert environment.runs("sleep 1000")
        assert environment.runs(KERNEL)
        manager.interrupt_kernel()
        reply = wait_for_reply(client, cell)
        assert reply.get("ename") == "KeyboardInterrupt", reply
        wait_for(lambda: not environment.runs("sleep 1000"))
        manager.signal_kernel(signal.SIGKILL)
        wait_for(lambda: not environment.runs(KERNEL))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def test_kernel_needs_ipykernel(environment: JupyterEnvironment, tmp_path: Path) -> None:
    inside = ("exec", "-n", "digits", "--", "sh", "-c")
    find = "python -c 'import ipykernel; print(ipykernel.__path__[0])'"
    where = environment.danlu(*inside, find, cwd=tmp_path).stdout.strip()
    install = ("kernel", "install", "--env", "digits", "--prefix", str(tmp_path))
    environment.danlu(*inside, f"mv {where} {where}-away", cwd=tmp_path)
    try:
        refused = environment.danlu(*install, cwd=tmp_path, check=False)
    finally:
        environment.danlu(*inside, f"mv {where}-away {where}", cwd=tmp_path)
    assert refused.returncode == 2
    assert 'install.python_packages(["ipykernel"])' in refused.stderr
    assert not (tmp_path / "share").exists()


def test_kernel_of_a_stopped_environment_reports_it(
    environment: JupyterEnvironment, kernel: str, tmp_path: Path
) -> None:
    connection = tmp_path / "connection.json"
    connection.write_text(json.dumps({"transport": "tcp"}))
    environment.danlu("stop", "--grace", "0", "digits", cwd=tmp_path)
    try:
        start = ("kernel", "run", "--env", "digits", str(connection))
        refused = environment.danlu(*start, cwd=tmp_path, check=False)
    finally:
        environment.danlu("start", "digits", cwd=tmp_path)
    assert refused.returncode == 125
    assert "environment digits is not running" in refused.stderr
    assert "danlu start digits" in refused.stderr
