"""Every way into an environment and every shell have the image's Python, PATH and variables."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.oci.tar import NormalizeOptions, write_layer
from danlu.store import Store
from danlu.util.paths import Paths
from tests.conftest import program_in
from tests.e2e.conftest import Project
from tests.engines import ENGINES, missing
from tests.sandbox.namespace_process import busybox
from tests.waiting import wait_for

pytestmark = [pytest.mark.real, pytest.mark.needs("root"), pytest.mark.timeout(600)]

GREETING = 'it\'s "me"'
IMAGE_PATH = (
    "/opt/tools/bin:/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)
LINES = (
    'shell("zsh")',
    'install.apt_packages(["fish", "busybox-static", "sudo"])',
    "install.python()",
    'install.python_packages(["packaging"])',
    f'runtime.environ({{"GREETING": {GREETING!r}}}, extra_path=["/opt/tools/bin"])',
    'runtime.daemon([["sh", "/workspace/probe-shells", "service"]])',
)
PROBE = """\
import json, os, sys
import packaging
values = [sys.prefix, os.environ["GREETING"], os.environ["LANG"], os.environ["PATH"]]
with open("/workspace/found", "a") as file:
    print(json.dumps([*sys.argv[1:], *values]), file=file)
"""
#: The shells that are started in each way, as a login shell and otherwise, and in an empty
#: environment. The last word is the command line.
SHELLS = (
    *("sh -c", "sh -lc", "bash -c", "bash -lc", "bash -ic", "bash -lic"),
    *("zsh -c", "zsh -lc", "zsh -lic", "fish -c", "fish -lc", "busybox ash -lc"),
    *("env -i bash -lc", "env -i zsh -lc", "env -i fish -lc"),
    *("su - -c", "su - -s /bin/sh -c", "su - -s /usr/bin/zsh -c", "su - -s /usr/bin/fish -c"),
    *("su -c", "su - games -s /bin/bash -c", "sudo -i sh -c"),
)
#: One line for the shell of the way itself, and one for each shell that it starts. Interactive ones
#: would take the terminal away from those after them.
PROBE_SHELLS = "python /workspace/probe.py $1 own </dev/null\n" + "".join(
    f"setsid -w {shell} \"python /workspace/probe.py '$1' '{shell}'\" </dev/null\n"
    for shell in SHELLS
)


def run_in_a_terminal(command: list[str], home: Path, directory: Path, typed: str) -> None:
    """Run a command in a terminal into which ``typed`` is typed, until it ends."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(directory)
        environ = {**os.environ, "DANLU_HOME": str(home), "TERM": "xterm"}
        os.execve(command[0], command, environ)
    os.write(terminal, typed.encode())
    try:
        while os.read(terminal, 1 << 16):
            pass
    except OSError:  # as reading from a terminal without programs fails
        pass
    os.waitpid(child, 0)
    os.close(terminal)


class ProbedEnvironment:
    """A running environment, and what the probe has found in it."""

    def __init__(self, project: Project, home: Path) -> None:
        self.project = project
        self.home = home
        self.danlu = str(Path(sys.executable).with_name("danlu"))

    def enter(self, way: str) -> None:
        """Run the probe through ``way``."""
        script = f"sh /workspace/probe-shells {way}"
        own = f"python /workspace/probe.py {way} typed"
        if way in ("run", "exec"):
            self.project(way, "--", "sh", "-c", script)
        elif way == "ssh":
            self.project("ssh", "shells", "--", f"{own}; {script}")
        elif way == "ssh-shell":
            environ = {**os.environ, "DANLU_HOME": str(self.home)}
            command = [self.danlu, "ssh", "shells"]
            text = f"{own}\n{script}\n"
            subprocess.run(command, input=text, env=environ, text=True, check=True)
        elif way in ("up", "ssh-terminal"):
            words = ["up"] if way == "up" else ["ssh", "shells"]
            typed = f"{own}; {script}; exit\n"
            run_in_a_terminal([self.danlu, *words], self.home, self.project.directory, typed)

    def read_found(self, way: str) -> dict[str, list[str]]:
        """Return what was found through ``way``, by shell."""
        file = self.project.directory / "found"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        return {line[1]: line[2:] for line in lines if line[0] == way}


def make_project(directory: Path, home: Path, *lines: str) -> Project:
    project = Project(directory, program_in(home))
    directory.mkdir()
    (directory / "probe.py").write_text(PROBE)
    (directory / "probe-shells").write_text(PROBE_SHELLS)
    (directory / "found").touch()
    # Of another user than root.
    (directory / "found").chmod(0o666)
    directory.chmod(0o755)
    project.write(*lines)
    return project


@pytest.fixture(scope="module")
def environment(
    tmp_path_factory: pytest.TempPathFactory, real_home: Path
) -> Iterator[ProbedEnvironment]:
    """An environment with all shells whose service runs the probe."""
    project = make_project(tmp_path_factory.mktemp("shells") / "shells", real_home, *LINES)
    project("up", "-d")
    yield ProbedEnvironment(project, real_home)
    project("down", "--grace", "0")


def check_values(found: dict[str, list[str]]) -> None:
    """Assert that each shell found the image's Python and variables."""
    for shell, (prefix, greeting, language, path) in found.items():
        assert (prefix, greeting, language) == ("/opt/venv", GREETING, "C.UTF-8"), shell
        # A user's profile may have added directories at the end.
        assert f"{path}:".startswith(f"{IMAGE_PATH}:"), shell


WAYS = ["exec", "ssh", "ssh-shell", "up", "service"]
SLOW_WAYS = [pytest.param(way, marks=pytest.mark.slow) for way in ("run", "ssh-terminal")]


@pytest.mark.parametrize("way", [*WAYS, *SLOW_WAYS])
def test_every_shell_has_the_images_python(environment: ProbedEnvironment, way: str) -> None:
    environment.enter(way)
    typed = {"typed"} if way in ("ssh", "ssh-shell", "up", "ssh-terminal") else set()
    wanted = {"own", *SHELLS, *typed}
    wait_for(lambda: environment.read_found(way).keys() >= wanted or way != "service")
    found = environment.read_found(way)
    assert found.keys() == wanted
    check_values(found)


def test_a_shell_without_a_command_is_a_login_shell_of_the_image(
    environment: ProbedEnvironment,
) -> None:
    script = 'print -r -- "$SHELL $options[login]" >/workspace/shell; exit\n'
    answer = environment.project.directory / "shell"
    run_in_a_terminal(
        [environment.danlu, "up"], environment.home, environment.project.directory, script
    )
    assert answer.read_text() == "/usr/bin/zsh on\n"


def test_variables_of_the_call_are_kept_by_login_shells(environment: ProbedEnvironment) -> None:
    script = "GREETING=mine PATH=/mine:$PATH exec bash -lc 'echo $GREETING $PATH'"
    output = environment.project("exec", "--", "sh", "-c", script).stdout
    assert output == f"mine /mine:{IMAGE_PATH}\n"


def test_nothing_of_it_is_a_change_of_the_user(environment: ProbedEnvironment) -> None:
    environment.project("exec", "--", "su", "-", "-c", "true")
    assert "danlu" not in environment.project("commit").stdout


TERMINAL = """\
import json, os, urllib.request
import websocket
base = f"127.0.0.1:{os.environ['JUPYTER_PORT']}"
headers = {"Authorization": f"token {os.environ['JUPYTER_TOKEN']}"}
request = urllib.request.Request(f"http://{base}/api/terminals", b"", headers)
name = json.load(urllib.request.urlopen(request))["name"]
address = f"ws://{base}/terminals/websocket/{name}"
terminal = websocket.create_connection(address, header=headers)
line = "echo $0 $SHELL >/workspace/shell; sh /workspace/probe-shells terminal; exit\\r"
terminal.send(json.dumps(["stdin", line]))
while json.loads(terminal.recv())[0] != "disconnect":
    pass
"""


@pytest.mark.slow
def test_terminals_and_kernels_of_jupyterlab_have_the_images_python(
    tmp_path: Path, real_home: Path
) -> None:
    project = make_project(tmp_path / "jupyter", real_home, *LINES, "config.jupyter()")
    (project.directory / "terminal.py").write_text(TERMINAL)
    (project.directory / "kernel.py").write_text(
        "import subprocess\nsubprocess.run(['sh', '/workspace/probe-shells', 'kernel'])\n"
    )
    environment = ProbedEnvironment(project, real_home)
    started = project("up", "-d").stderr
    try:
        address = re.search(r"JupyterLab: http://127.0.0.1:(\d+)/lab\?token=(\S+)", started)
        assert address is not None
        # It answers as soon as it is printed.
        variables = f"JUPYTER_PORT={address[1]} JUPYTER_TOKEN={address[2]}"
        project("exec", "--", "sh", "-c", f"{variables} python /workspace/terminal.py")
        project("exec", "--", "jupyter", "run", "/workspace/kernel.py")
        for way in ("terminal", "kernel"):
            found = environment.read_found(way)
            assert found.keys() == {"own", *SHELLS}
            check_values(found)
        assert (project.directory / "shell").read_text() == "/usr/bin/zsh /usr/bin/zsh\n"
    finally:
        project("down", "--grace", "0")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["docker", "podman"])
def test_an_engine_without_danlu_has_it_too(
    environment: ProbedEnvironment, tmp_path: Path, name: str
) -> None:
    if reason := missing(name):
        pytest.skip(reason)
    archive = tmp_path / "image.tar"
    environment.project("build", "-t", "team/shells:1", "-o", f"type=docker,dest={archive}")
    program = "import sys, packaging; print(sys.prefix)"
    with ENGINES[name]() as engine:
        engine.load(archive)
        for shell in ("bash -lc", "zsh -lc", "fish -lc", "su - -c"):
            command = (*shell.split(), f"python -c '{program}'")
            assert engine.run("docker.io/team/shells:1", *command) == "/opt/venv", shell


#: Of Alpine 3.20 (alpine-baselayout), without its comments.
ALPINE_PROFILE = """\
export PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
export PAGER=less
umask 022
for script in /etc/profile.d/*.sh ; do
        if [ -r "$script" ] ; then
                . "$script"
        fi
done
unset script
"""


def put_image(home: Path, tree: Path, name: str, *variables: str) -> None:
    """Put an image of the files in ``tree`` into the store under ``name``."""
    with Store.open(Paths.of({"DANLU_HOME": str(home)}).store) as store:
        with store.staging() as staged:
            tree.rename(staged / "tree")
            summary = write_layer(staged / "tree", None, normalise=NormalizeOptions(uid=0, gid=0))
            layer = store.commit_layer(staged / "tree", summary, created_by="busybox")
        document = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": list(variables)},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
        }
        image = store.put_image(json.dumps(document).encode(), [layer.diff_id])
        store.tag(name, image.digest)


@pytest.mark.needs("busybox")
@pytest.mark.parametrize("profile", [ALPINE_PROFILE, "export PATH=/bin\n", ""])
def test_an_image_of_another_distribution_has_it_too(
    project: Project, real_home: Path, tmp_path: Path, profile: str
) -> None:
    tree = busybox(tmp_path / "tree")
    for applet in ("su", "tr"):
        (tree / "bin" / applet).symlink_to("busybox")
    if profile:
        (tree / "etc/profile").write_text(profile)
    put_image(real_home, tree, "local/other:1", "PATH=/base/bin:/bin", "BASE=from the base")
    project.write(
        f'runtime.environ({{"GREETING": {GREETING!r}}}, extra_path=["/tools"])',
        base='    base(image="local/other:1")\n',
    )
    script = 'echo "$GREETING|$BASE|$PATH"'
    wanted = f"{GREETING}|from the base|/tools:/base/bin:/bin"
    for shell in ("sh -c", "sh -lc", "su - -c", "su -c", "su - worker -c", "env -i /bin/sh -lc"):
        found = project.run(*shell.split(), script)
        assert f"{found}:".startswith(f"{wanted}:"), shell
