"""Environments in each engine: started, entered, stopped, started again, removed."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from danlu.engine.contexts import Context, create_context
from danlu.engine.docker.settings import container_name
from danlu.engine.environment_directory import EnvironmentDirectory, ServiceSpec
from danlu.engine.registry import find_engine, name_engine_context
from danlu.sandbox.procfs import find_namespace_members
from danlu.store import Store
from danlu.util.danlu_program import CONTEXT_VARIABLE
from danlu.util.process_tree import child_pids
from tests.conftest import Danlu
from tests.engine.kubernetes.clusters import cluster_variables
from tests.engines import engine_variables, list_engine_params, make_engine_param
from tests.fakes.vscode_archives import COMMIT, make_cli, make_server
from tests.jobs.containers.engine_rig import image, paths_of
from tests.ports import free_port
from tests.remote.machine import CONTEXT, OtherMachine, create_machine
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.real,
    pytest.mark.needs("busybox"),
    pytest.mark.timeout(120),
]

#: The engines of this machine, those of installed packages among them.
LOCAL = list_engine_params()
#: Those that see this machine's files.
MOUNTING = list_engine_params(mounts_files=True)
#: danlu's own engine on another machine.
SSH = pytest.param("ssh", marks=[pytest.mark.needs("ssh", "sshd", "root"), pytest.mark.slow])
#: Those whose containers have a writable layer that stays.
LAYERED = [*list_engine_params(keeps_files=True), SSH]
#: For what only they do.
DOCKER, PODMAN = make_engine_param("docker"), make_engine_param("podman")


@dataclass(frozen=True)
class EngineSetup:
    """How danlu's command line finds the engine under test, and the machine of the engine."""

    variables: dict[str, str]
    machine: OtherMachine | None = None

    @property
    def engine(self) -> str:
        """The engine, which is danlu's own on another machine."""
        context = self.variables[CONTEXT_VARIABLE]
        return "embedded" if context in ("local", CONTEXT) else context


@pytest.fixture(scope="module", params=[*LOCAL, SSH])
def engine_setup(request: pytest.FixtureRequest) -> Iterator[EngineSetup]:
    """The engine under test."""
    if request.param == "kubernetes":
        yield EngineSetup(cluster_variables(request.getfixturevalue("cluster")))
    elif request.param == "ssh":
        with use_other_machine() as setup:
            yield setup
    else:
        with engine_variables(request.param) as variables:
            yield EngineSetup({CONTEXT_VARIABLE: name_engine_context(request.param), **variables})


@contextmanager
def use_other_machine() -> Iterator[EngineSetup]:
    """Start a machine that the context ``box`` of each test's home reaches."""
    # A short path, because ssh creates sockets in it.
    with tempfile.TemporaryDirectory(prefix="ssh-") as directory:
        machine = create_machine(Path(directory))
        try:
            yield EngineSetup(
                {CONTEXT_VARIABLE: CONTEXT, **machine.environ, "XDG_RUNTIME_DIR": directory},
                machine,
            )
        finally:
            machine.close()


@pytest.fixture(autouse=True)
def engine(engine_setup: EngineSetup, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine of a test's environments."""
    for name, value in engine_setup.variables.items():
        monkeypatch.setenv(name, value)
    return engine_setup.engine


@pytest.fixture
def persistent_file(engine: str) -> str:
    """A file that survives `danlu stop`."""
    return "/kept" if find_engine(engine).features.keeps_files else "/workspace/kept"


@pytest.fixture
def box_home(tmp_path: Path, engine_setup: EngineSetup, engine: str) -> Path:
    """A home whose store, or that of its other machine, has the image ``box:1``."""
    home = tmp_path / "home"
    machine = engine_setup.machine
    if machine is None:
        digest = image(home)
        with Store.open(paths_of(home).store) as store:
            store.tag("box:1", digest)
        return home
    machine.create_image()
    create_context(CONTEXT, Context("ssh://box"), paths_of(home))
    # The state of environments is compared, whichever machine they are on.
    machine.paths.environments.mkdir(exist_ok=True)
    (home / "environments").symlink_to(machine.paths.environments)
    return home


def start(danlu: Danlu, project: Path, *options: str) -> EnvironmentDirectory:
    danlu("up", "--image", "box:1", "-d", "-n", "digits", *options, cwd=project)
    return EnvironmentDirectory(project.parent / "home/environments/digits")


def project_of(environment: EnvironmentDirectory) -> Path:
    """Return the directory that is mounted: the project, or its copy on another machine."""
    return Path(environment.read_spec().project)


def run_inside(danlu: Danlu, project: Path, script: str, *, check: bool = True) -> str:
    result = danlu("exec", "-n", "digits", "--", "sh", "-c", script, cwd=project, check=check)
    return result.stdout


def test_programs_of_an_environment_share_files_and_see_the_project(
    danlu: Danlu, project: Path
) -> None:
    environment = start(danlu, project)
    run_inside(danlu, project, "echo kept >/kept; echo made >made; sleep 1000 >/dev/null 2>&1 &")
    assert run_inside(danlu, project, "cat /kept; pwd; ps | grep -c '[s]leep 1000'") == (
        "kept\n/workspace\n1\n"
    )
    assert (project_of(environment) / "made").read_text() == "made\n"


def test_files_created_inside_belong_to_this_account(
    danlu: Danlu, project: Path, engine_setup: EngineSetup
) -> None:
    start(danlu, project)
    run_inside(danlu, project, "mkdir made; echo made >made/file")
    if engine_setup.machine is not None:
        danlu("context", "fetch", cwd=project)
    file = project / "made/file"
    # Pods are asked for their files from time to time.
    wait_for(file.exists)
    assert (file.stat().st_uid, file.stat().st_gid) == (os.geteuid(), os.getegid())
    assert file.parent.stat().st_uid == os.geteuid()
    file.unlink()


def run_over_ssh(home: Path, script: str) -> str:
    """Run a script in the only environment, whose host depends on its machine."""
    (config,) = (home / "config/ssh.d").glob("*.conf")
    host = re.search(r"^Host (\S+)$", config.read_text(), re.MULTILINE)
    assert host is not None
    command = ["ssh", "-F", str(config), host[1], script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.needs("ssh")
@pytest.mark.parametrize("engine_setup", LAYERED, indirect=True)
def test_a_server_of_vs_code_is_where_editors_look_for_it(
    danlu: Danlu, project: Path, box_home: Path, tmp_path: Path
) -> None:
    archives = make_server(tmp_path / "server.tar.gz"), make_cli(tmp_path / "cli.tar.gz")
    danlu("vscode", "add", *map(str, archives), cwd=project)
    start(danlu, project)
    place = f"~/.vscode-server/cli/servers/Stable-{COMMIT}"
    for program in (f"{place}/server", f"~/.vscode-server/bin/{COMMIT}"):
        output = run_over_ssh(box_home, f"{program}/bin/code-server --version")
        assert output == "--version 1.105.1\n"
    # The editor writes next to the server, but cannot change it for other environments.
    script = f"""test -x ~/.vscode-server/code-{COMMIT} && echo found
        echo log >{place}/log.txt && cat {place}/log.txt
        touch {place}/server/made 2>/dev/null || echo readonly"""
    assert run_over_ssh(box_home, script) == "found\nlog\nreadonly\n"
    assert "vscode" not in danlu("commit", "digits", cwd=project).stdout
    danlu("stop", "digits", cwd=project)
    danlu("vscode", "rm", COMMIT, cwd=project)
    danlu("start", "digits", cwd=project)
    left = run_over_ssh(
        box_home, "find ~/.vscode-server ! -type d; ls ~/.vscode-server/cli/servers"
    )
    assert left == ""


def test_exec_passes_streams_and_exit_codes(danlu: Danlu, project: Path, box_home: Path) -> None:
    start(danlu, project)
    command = [str(Path(sys.executable).with_name("danlu")), "exec", "-n", "digits", "--"]
    environ = {**os.environ, "DANLU_HOME": str(box_home)}
    data = os.urandom(8 << 20)
    result = subprocess.run([*command, "cat"], input=data, capture_output=True, env=environ)
    assert (result.returncode, result.stdout == data) == (0, True)
    both = [*command, "tee", "/dev/stderr"]
    result = subprocess.run(both, input=data, capture_output=True, env=environ)
    assert (result.stdout == data, result.stderr == data) == (True, True)
    script = "exec >&- 2>&-; sleep 0.2; exit 3"
    assert subprocess.run([*command, "sh", "-c", script], env=environ).returncode == 3
    script = "echo out; echo err >&2; exit 7"
    result = subprocess.run([*command, "sh", "-c", script], capture_output=True, env=environ)
    assert (result.returncode, result.stdout, result.stderr) == (7, b"out\n", b"err\n")
    missing = subprocess.run([*command, "nosuch"], env=environ, capture_output=True)
    assert missing.returncode == 127
    assert missing.stderr == b"error: nosuch: not found in the environment\n"
    killed = subprocess.run([*command, "sh", "-c", "kill -9 $$"], env=environ)
    assert killed.returncode == 137


# Not over SSH: sshd waits until all programs have closed the streams.
@pytest.mark.parametrize("engine_setup", MOUNTING, indirect=True)
def test_exec_ends_with_its_program_although_a_child_keeps_the_streams(
    danlu: Danlu, project: Path, box_home: Path
) -> None:
    start(danlu, project)
    command = [str(Path(sys.executable).with_name("danlu")), "exec", "-n", "digits", "--"]
    environ = {**os.environ, "DANLU_HOME": str(box_home)}
    script = "(trap '' HUP; exec sleep 1000) & exit 3"
    # Without pipes of ours: the child would keep those open, too.
    ended = subprocess.run([*command, "sh", "-c", script], env=environ, timeout=60, check=False)
    assert ended.returncode == 3
    assert "sleep 1000" in danlu("exec", "-n", "digits", "--", "ps", cwd=project).stdout


def test_exec_gives_the_program_our_terminal(danlu: Danlu, project: Path, box_home: Path) -> None:
    start(danlu, project)
    command = [str(Path(sys.executable).with_name("danlu")), "exec", "-n", "digits", "--"]
    script = "trap 'stty size' WINCH; stty size; tty; echo ready; while :; do sleep 0.01; done"
    child, terminal = pty.fork()
    if child == 0:
        environ = {**os.environ, "DANLU_HOME": str(box_home), "TERM": "vt100"}
        os.execve(command[0], [*command, "sh", "-c", f"echo $TERM; {script}"], environ)
    set_window_size(terminal, 33, 111)
    output = read_until(terminal, b"ready")
    # runc makes our terminal raw only after the first output may have been copied to it.
    assert output.replace(b"\r\r\n", b"\r\n").startswith(b"vt100\r\n")
    assert b"/dev/pts/0" in output
    # Docker's client misses changes while it is still starting. Each change has its own size,
    # because a busy machine may answer one only after the next.
    rows = itertools.count(44)
    read_until(terminal, b" 122", poke=lambda: set_window_size(terminal, next(rows), 122))
    # Now it listens, and no change may be lost.
    set_window_size(terminal, 33, 133)
    read_until(terminal, b"33 133")
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    os.close(terminal)


@pytest.mark.parametrize("engine_setup", MOUNTING, indirect=True)
def test_every_key_arrives_at_once(danlu: Danlu, project: Path, box_home: Path) -> None:
    start(danlu, project)
    program = str(Path(sys.executable).with_name("danlu"))
    words = [program, "exec", "-n", "digits", "--", "sh", "-c", "echo ready; cat -v"]
    child, terminal = pty.fork()
    if child == 0:
        os.execve(program, words, {**os.environ, "DANLU_HOME": str(box_home)})
    read_until(terminal, b"ready")
    # The first of the keys with which Docker and Podman detach from a program.
    os.write(terminal, b"\x10")
    read_until(terminal, b"^P")
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    os.close(terminal)


def test_a_program_that_nobody_reads_ends(danlu: Danlu, project: Path, box_home: Path) -> None:
    start(danlu, project)
    command = [str(Path(sys.executable).with_name("danlu")), "exec", "-n", "digits", "--", "yes"]
    environ = {**os.environ, "DANLU_HOME": str(box_home)}
    client = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"y\n"
    client.stdout.close()
    assert client.wait(60)
    # BusyBox may run it in the process of a shell.
    wait_for(lambda: not any("yes" in command.split() for command in list_commands(danlu, project)))


def test_programs_that_end_are_reaped(danlu: Danlu, project: Path) -> None:
    environment = start(danlu, project)
    run_inside(danlu, project, "sleep 0.1 & true")
    run_inside(danlu, project, "true")
    supervisor = int(environment.lock.read_text())

    def has_zombies() -> bool:
        files = [Path(f"/proc/{pid}/stat") for pid in child_pids(supervisor)]
        return any(") Z " in file.read_text() for file in files if file.exists())

    wait_for(lambda: not has_zombies())


# A program on another machine outlives the client, as with ssh itself.
@pytest.mark.parametrize("engine_setup", LOCAL, indirect=True)
def test_a_killed_client_leaves_no_program(danlu: Danlu, project: Path, box_home: Path) -> None:
    start(danlu, project)
    command = [str(Path(sys.executable).with_name("danlu")), "exec", "-n", "digits", "--"]
    environ = {**os.environ, "DANLU_HOME": str(box_home)}
    script = "echo ready; sleep 1000 & wait"
    client = subprocess.Popen([*command, "sh", "-c", script], env=environ, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"ready\n"
    client.kill()
    client.wait()
    client.stdout.close()
    wait_for(lambda: not any("sleep 1000" in command for command in list_commands(danlu, project)))


#: Runs a program that ends with the parent of this process.
TIED_PROGRAM = """
import os, sys
from danlu.engine.environment_control import encode_exec
from danlu.engine.foreground_exec import exec_in_foreground
from danlu.engine.types import ExecRequest
request = ExecRequest(("sh", "-c", "echo ready; sleep 1000 & wait"))
exec_in_foreground(sys.argv[1], encode_exec(request), parent=os.pidfd_open(os.getppid()))
"""


@pytest.mark.parametrize("engine_setup", LOCAL, indirect=True)
def test_a_program_can_end_with_the_process_that_started_the_client(
    danlu: Danlu, project: Path
) -> None:
    environment = start(danlu, project)
    words = ["sh", "-c", '"$@" & wait', "sh", sys.executable, "-c", TIED_PROGRAM]
    parent = subprocess.Popen([*words, str(environment.directory)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not any("sleep 1000" in command for command in list_commands(danlu, project)))


def test_a_second_up_finds_the_running_environment(danlu: Danlu, project: Path) -> None:
    environment = start(danlu, project)
    first = environment.read_state().started
    run_inside(danlu, project, "echo there >/there")
    start(danlu, project)
    assert environment.read_state().started == first
    assert run_inside(danlu, project, "cat /there") == "there\n"


def test_two_concurrent_ups_start_one_environment(
    danlu: Danlu, project: Path, box_home: Path
) -> None:
    command = [str(Path(sys.executable).with_name("danlu")), "up", "--image", "box:1", "-d"]
    environ = {**os.environ, "DANLU_HOME": str(box_home)}
    ups = [subprocess.Popen(command, cwd=project, env=environ) for _ in range(3)]
    assert [up.wait(60) for up in ups] == [0, 0, 0]
    assert danlu("ps", "-q", cwd=project).stdout.split() == ["digits"]
    assert run_inside(danlu, project, "echo runs") == "runs\n"


def test_stop_keeps_files_and_start_brings_them_back(
    danlu: Danlu, project: Path, persistent_file: str
) -> None:
    environment = start(danlu, project)
    run_inside(danlu, project, f"echo kept >{persistent_file}; sleep 1000 >/dev/null 2>&1 &")
    stopped = danlu("stop", "digits", cwd=project)
    assert "ended: sleep 1000" in stopped.stderr
    assert stopped.stderr.count("ended: ") == 1
    assert environment.read_state().phase == "Stopped"
    assert environment.read_state().stopped_by_user
    failed = danlu("exec", "-n", "digits", "true", cwd=project, check=False)
    assert failed.returncode == 125
    assert "danlu start digits" in failed.stderr
    danlu("start", "digits", cwd=project)
    script = f"cat {persistent_file}; ps | grep -c '[s]leep 1000'"
    assert run_inside(danlu, project, script, check=False) == "kept\n0\n"


@pytest.mark.parametrize("engine_setup", LAYERED, indirect=True)
def test_a_killed_supervisor_loses_nothing(danlu: Danlu, project: Path) -> None:
    environment = start(danlu, project)
    run_inside(danlu, project, "echo kept >/kept")
    container = environment.read_state().container
    assert container is not None
    members = find_namespace_members(container)
    os.kill(int(environment.lock.read_text()), signal.SIGKILL)
    for pid in members:
        wait_until_gone(pid)
    wait_for(lambda: not environment.is_running())
    (row,) = json.loads(danlu("ps", "--format", "json", cwd=project).stdout)
    assert (row["phase"], row["reason"]) == ("Stopped", "supervisor killed")
    assert row["started"] <= row["ended"] <= datetime.now(UTC).isoformat()
    danlu("start", "digits", cwd=project)
    assert run_inside(danlu, project, "cat /kept") == "kept\n"


@pytest.mark.parametrize("engine_setup", LAYERED, indirect=True)
def test_commit_keeps_changes_as_an_image(danlu: Danlu, project: Path, engine: str) -> None:
    start(danlu, project)
    changes = """echo kept >/kept; rm /bin/awk; mkdir /opt; echo x >/opt/x
        ln /bin/busybox /opt/busybox; rm /bin/vi; mkdir /bin/vi; mkfifo /opt/pipe"""
    run_inside(danlu, project, changes)
    commit = danlu("commit", "digits", "--tag", "box:2", cwd=project)
    assert '"rm -rf -- /bin/awk"' in commit.stdout
    if engine == "podman" and os.geteuid() != 0:
        # Its overlay shows both names with different inode numbers, so `podman export` has copies.
        assert "+ /opt/busybox" in commit.stderr
    else:
        assert '"ln -f -- /bin/busybox /opt/busybox"' in commit.stdout
    assert "+ /kept (5 B)" in commit.stderr
    script = "cat /kept /opt/x; ls /bin/awk || echo removed; test -d /bin/vi -a -p /opt/pipe"
    run = danlu("run", "--image", "box:2", "--", "sh", "-c", script, cwd=project)
    assert run.stdout == "kept\nx\nremoved\n"
    write = danlu("commit", "digits", "--write", cwd=project, check=False)
    assert write.returncode == 2
    assert "created from an image, not from a build file" in write.stderr


@pytest.mark.parametrize("engine_setup", LAYERED, indirect=True)
def test_an_image_with_one_more_layer_starts(danlu: Danlu, project: Path) -> None:
    start(danlu, project)
    run_inside(danlu, project, "echo more >/more")
    danlu("commit", "digits", "--tag", "box:2", cwd=project)
    # Engines with a store keep the layers of the first image and get only the new one.
    danlu("up", "--image", "box:2", "-d", "-n", "letters", cwd=project)
    assert danlu("exec", "-n", "letters", "cat", "/more", cwd=project).stdout == "more\n"


@pytest.mark.parametrize("engine_setup", [DOCKER], indirect=True)
def test_recreating_copies_no_layer_again(danlu: Danlu, project: Path, engine: str) -> None:
    start(danlu, project)
    run_inside(danlu, project, "echo more >/more")
    danlu("commit", "digits", "--tag", "box:2", cwd=project)

    def list_images() -> dict[str, str]:
        """Return the time at which each of danlu's images got its name, by its layers."""
        names = subprocess.check_output([engine, "image", "ls", "-q"], text=True).split()
        form = "{{json .RootFS.Layers}} {{.Metadata.LastTagTime}}"
        rows = subprocess.check_output([engine, "image", "inspect", "-f", form, *names], text=True)
        return dict(row.split(" ", 1) for row in rows.splitlines())

    first = list_images()
    start(danlu, project, "--recreate")
    assert list_images() == first  # it was not loaded again
    danlu("up", "--image", "box:2", "-d", "-n", "digits", "--recreate", cwd=project)
    assert danlu("exec", "-n", "digits", "cat", "/more", cwd=project).stdout == "more\n"
    # The old image went after the new one had come, which has its layers.
    ((before,), (after,)) = first, list_images()
    assert json.loads(after)[:-1] == json.loads(before)


@pytest.mark.parametrize("engine_setup", LAYERED, indirect=True)
def test_changed_options_keep_the_files(danlu: Danlu, project: Path) -> None:
    start(danlu, project)
    run_inside(danlu, project, "echo kept >/kept")
    danlu("stop", "digits", cwd=project)
    start(danlu, project, "--env", "A=1", "-v", f"{project}:/data:ro")
    assert (
        run_inside(danlu, project, "cat /kept; echo $A; touch /data/x || ls /data") == "kept\n1\n"
    )


@pytest.mark.parametrize("engine_setup", LAYERED, indirect=True)
def test_commit_finds_what_was_changed_before_the_settings_were(
    danlu: Danlu, project: Path, tmp_path: Path
) -> None:
    start(danlu, project, "-v", f"{project}:/data/in:ro")
    run_inside(
        danlu,
        project,
        """echo kept >/kept; mkdir -p /opt/d; echo x >/opt/d/x; rm /bin/awk; chmod 700 /bin/busybox
        ln -s nowhere /opt/link; ln /opt/d/x /opt/d/y; rm /bin/nc; mkdir /bin/nc""",
    )
    danlu("stop", "digits", cwd=project)
    start(danlu, project, "--env", "A=1")
    run_inside(danlu, project, "echo more >/more; echo more >>/kept; rm -r /opt/d; rm /bin/df")
    danlu("stop", "digits", cwd=project)
    start(danlu, project, "--env", "A=2")
    commit = danlu("commit", "digits", "--tag", "box:2", cwd=project)
    assert set(re.findall(r"^[-+~] .*", commit.stderr, re.MULTILINE)) == {
        "- /bin/awk",
        "- /bin/df",
        "~ /bin/busybox (mode 0700)",
        "~ /bin/nc",
        "+ /kept (10 B)",
        "+ /more (5 B)",
        "+ /opt",
        "+ /opt/link -> nowhere",
    }
    script = "cat /kept /more; ls /bin/awk || echo removed; test -d /bin/nc"
    run = danlu("run", "--image", "box:2", "--", "sh", "-c", script, cwd=project)
    assert run.stdout == "kept\nmore\nmore\nremoved\n"


@pytest.mark.parametrize("engine_setup", LAYERED, indirect=True)
def test_changes_that_are_discarded_are_counted(danlu: Danlu, project: Path) -> None:
    start(danlu, project)
    assert "discarded" not in danlu("down", "digits", cwd=project).stderr
    start(danlu, project)
    run_inside(danlu, project, "mkdir -p /opt/d; echo x >/opt/d/x; echo x >/opt/y; mkdir -p /run/z")
    up = danlu("up", "--image", "box:1", "-d", "-n", "digits", "--recreate", cwd=project)
    assert "discarded 2 changed files (/opt, /opt/d); `danlu commit` keeps such" in up.stderr
    run_inside(danlu, project, "rm /bin/awk")
    down = danlu("down", "digits", cwd=project)
    assert "discarded 1 changed file (/bin); `danlu commit` keeps such changes" in down.stderr


def test_a_changed_variable_is_applied(danlu: Danlu, project: Path) -> None:
    start(danlu, project, "--env", "A=1")
    danlu("stop", "digits", cwd=project)
    start(danlu, project, "--env", "A=2")
    assert run_inside(danlu, project, "echo $A") == "2\n"


@pytest.mark.parametrize("engine_setup", [DOCKER, PODMAN], indirect=True)
def test_a_removed_container_is_named(danlu: Danlu, project: Path, engine: str) -> None:
    environment = start(danlu, project)
    danlu("stop", "digits", cwd=project)
    subprocess.run([engine, "rm", container_name(environment)], check=True, capture_output=True)
    started = danlu("start", "digits", cwd=project)
    assert f"its container was removed with {engine}" in started.stderr
    assert run_inside(danlu, project, "echo runs") == "runs\n"


@pytest.mark.parametrize("engine_setup", [DOCKER], indirect=True)
def test_an_environment_that_cannot_be_created_leaves_nothing(
    danlu: Danlu, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without_daemon:
        without_daemon.setenv("DOCKER_HOST", "unix:///nonexistent")
        up = danlu("up", "--image", "box:1", "-d", cwd=project, check=False)
    assert up.returncode == 4
    assert "Cannot connect to the Docker daemon" in up.stderr
    assert danlu("ps", "-q", cwd=project).stdout == ""


@pytest.mark.parametrize("engine_setup", ["embedded"], indirect=True)
def test_an_environment_that_never_ran_leaves_nothing(
    danlu: Danlu, project: Path, box_home: Path
) -> None:
    options = ("--image", "box:1", "-d", "-n", "digits")
    mistyped = danlu("up", *options, "--user", "nobody-here", cwd=project, check=False)
    assert mistyped.returncode == 2
    assert danlu("ps", "-q", cwd=project).stdout == ""
    assert not (box_home / "environments/digits").exists()


@pytest.mark.parametrize("engine_setup", LOCAL, indirect=True)
def test_a_program_runs_in_the_engine_and_leaves_nothing(danlu: Danlu, project: Path) -> None:
    script = 'echo out; echo "$WORD" >made; exit 4'
    ran = danlu(
        *("run", "--image", "box:1", "-e", "WORD=one", "--", "sh", "-c", script),
        cwd=project,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (4, "out\n"), ran.stderr
    assert (project / "made").read_text() == "one\n"
    assert danlu("ps", "-q", cwd=project).stdout == ""


@pytest.mark.parametrize("engine_setup", LOCAL, indirect=True)
def test_an_environment_is_found_in_its_engine(danlu: Danlu, project: Path, engine: str) -> None:
    start(danlu, project)
    (row,) = json.loads(danlu("ps", "--format", "json", cwd=project).stdout)
    assert row["engine"] == engine
    other = "podman" if engine == "embedded" else "local"
    up = danlu(
        *("up", "--image", "box:1", "-d", "-n", "digits", "--on", other),
        cwd=project,
        check=False,
    )
    assert up.returncode == 2
    assert f"environment digits runs in the {engine} engine" in up.stderr


def test_top_lists_processes(danlu: Danlu, project: Path) -> None:
    start(danlu, project)
    run_inside(danlu, project, "sleep 1000 >/dev/null 2>&1 &")
    rows = json.loads(danlu("top", "digits", "--format", "json", cwd=project).stdout)
    (row,) = [row for row in rows if row["command"] == "sleep 1000"]
    assert row["memory"] > 0


def test_down_removes_everything(danlu: Danlu, project: Path, box_home: Path) -> None:
    environment = start(danlu, project)
    run_inside(danlu, project, "echo lost >/lost; touch kept")
    kept = project_of(environment) / "kept"
    danlu("down", "digits", cwd=project)
    assert danlu("ps", "-q", cwd=project).stdout == ""
    assert [path for path in (box_home / "environments").iterdir() if path.suffix != ".lock"] == []
    assert kept.exists()
    start(danlu, project)
    assert run_inside(danlu, project, "ls /lost", check=False) == ""


def test_commands_find_the_environment_of_the_directory(
    danlu: Danlu, project: Path, tmp_path: Path
) -> None:
    danlu("up", "--image", "box:1", "-d", cwd=project)
    assert danlu("exec", "pwd", cwd=project).stdout == "/workspace\n"
    danlu("stop", cwd=project)
    (tmp_path / "other").mkdir()
    lost = danlu("stop", cwd=tmp_path / "other", check=False)
    assert lost.returncode == 2
    assert re.search("no environment of /.*/other found", lost.stderr)


def test_another_project_cannot_take_a_name(danlu: Danlu, project: Path, tmp_path: Path) -> None:
    start(danlu, project)
    other = tmp_path / "other"
    other.mkdir()
    up = danlu("up", "--image", "box:1", "-d", "-n", "digits", cwd=other, check=False)
    assert up.returncode == 2
    assert re.search("environment digits belongs to /.*/digits", up.stderr)


@pytest.mark.parametrize("engine_setup", ["embedded"], indirect=True)
def test_a_replaced_project_directory_is_mounted_by_a_new_start(
    danlu: Danlu, project: Path
) -> None:
    start(danlu, project)
    project.rename(project.with_name("former"))
    project.mkdir()
    (project / "new").touch()
    shutil.rmtree(project.with_name("former"))
    refused = danlu("exec", "-n", "digits", "true", cwd=project, check=False)
    assert refused.returncode == 125
    assert "cannot start true: its directory was removed or replaced" in refused.stderr
    assert "`danlu stop digits`, then `danlu start digits`" in refused.stderr
    danlu("stop", "--grace", "0", cwd=project)
    danlu("start", cwd=project)
    assert run_inside(danlu, project, "ls") == "new\n"


@pytest.mark.parametrize("engine_setup", ["embedded"], indirect=True)
def test_a_pipe_in_place_of_the_users_is_refused(danlu: Danlu, project: Path) -> None:
    environment = start(danlu, project)
    replace = "rm -f /etc/passwd; mkfifo /etc/passwd"
    run_inside(danlu, project, replace)
    refused = danlu("exec", "-n", "digits", "true", cwd=project, check=False)
    assert refused.returncode == 125
    assert "cannot start a program in environment digits: /etc/passwd is not a file" in (
        refused.stderr
    )
    danlu("stop", "--grace", "0", cwd=project)
    (environment.upper / "etc" / "passwd").unlink()
    danlu("start", cwd=project)
    assert run_inside(danlu, project, "echo runs") == "runs\n"


def test_a_stopped_environment_can_be_renamed(
    danlu: Danlu, project: Path, persistent_file: str
) -> None:
    start(danlu, project)
    run_inside(danlu, project, f"echo kept >{persistent_file}")
    running = danlu("rename", "digits", "letters", cwd=project, check=False)
    assert (running.returncode, "danlu stop digits" in running.stderr) == (2, True)
    danlu("stop", "digits", cwd=project)
    danlu("rename", "digits", "letters", cwd=project)
    assert danlu("ps", "-q", cwd=project).stdout == "letters\n"
    danlu("image", "rm", "box:1", cwd=project)
    danlu("start", cwd=project)
    assert danlu("exec", "cat", persistent_file, cwd=project).stdout == "kept\n"
    for new in ("letters", "../x", "A"):
        assert danlu("rename", "letters", new, cwd=project, check=False).returncode == 2


def test_a_stopped_environment_keeps_its_image(danlu: Danlu, project: Path) -> None:
    start(danlu, project)
    danlu("stop", "digits", cwd=project)
    danlu("image", "rm", "box:1", cwd=project)
    danlu("image", "prune", "--all", "--yes", cwd=project, check=False)
    danlu("start", "digits", cwd=project)
    assert run_inside(danlu, project, "echo runs") == "runs\n"


def test_a_forwarded_port_reaches_the_environment(danlu: Danlu, project: Path) -> None:
    inner, outer = free_port(), free_port()
    start(danlu, project, "--port", f"{outer}:{inner}")
    (project / "page").write_text("hello")
    run_inside(danlu, project, serve_page(inner))
    with urllib.request.urlopen(f"http://127.0.0.1:{outer}/", timeout=60) as answer:
        assert answer.read() == b"hello"


@pytest.mark.parametrize("engine_setup", LOCAL, indirect=True)
def test_a_port_in_use_is_one_error(danlu: Danlu, project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        up = danlu(
            *("up", "--image", "box:1", "-d", "-n", "digits", "--port", f"{port}:1"),
            cwd=project,
            check=False,
        )
    assert up.returncode == 3
    assert f"cannot listen on 127.0.0.1:{port}" in up.stderr
    assert "Traceback" not in up.stderr


def test_services_restart_and_have_logs(danlu: Danlu, project: Path) -> None:
    environment = start(danlu, project)
    danlu("stop", "digits", cwd=project)
    script = "echo turn >>turns; wc -l <turns; [ $(wc -l <turns) -lt 2 ] || exec sleep 1000"
    services = (ServiceSpec("counter", ("sh", "-c", script)), ServiceSpec("lost", ("nosuch",)))
    change_spec(environment, services=services, init=("echo prepared >prepared; echo said",))
    danlu("start", "digits", cwd=project)
    turns = project_of(environment) / "turns"
    wait_for(lambda: turns.exists() and count_lines(turns) == 2)
    wait_for(lambda: environment.read_state().services[0].running)
    wait_for(lambda: environment.read_state().services[1].restarts > 0)
    counter, lost = environment.read_state().services
    assert (counter.restarts, lost.exit_code) == (1, 127)
    log = danlu("logs", "digits", "counter", cwd=project).stdout
    assert log.startswith("1\n")
    assert "counter exited with code 0; restarting in" in log
    assert danlu("logs", "digits", "init", cwd=project).stdout.endswith("\nsaid\n")
    members = find_namespace_members(environment.read_state().container or 0)
    danlu("stop", "digits", cwd=project)
    for pid in members:
        wait_until_gone(pid)


@pytest.mark.parametrize("engine_setup", ["embedded"], indirect=True)
def test_followed_logs_end_when_the_environment_is_removed(
    danlu: Danlu, project: Path, box_home: Path
) -> None:
    environment = start(danlu, project)
    danlu("stop", "digits", cwd=project)
    change_spec(environment, services=(ServiceSpec("hello", ("sh", "-c", "echo hello")),))
    danlu("start", "digits", cwd=project)
    wait_for(lambda: "hello" in danlu("logs", "digits", "hello", cwd=project).stdout)
    command = [sys.executable, "-m", "danlu", "logs", "-f", "digits"]
    variables = {**os.environ, "DANLU_HOME": str(box_home)}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline()
        danlu("down", "--grace", "0", "digits", cwd=project)
        follower.stdout.read()
        assert follower.wait(20) == 0


def test_an_environment_stops_while_it_runs_init_commands(danlu: Danlu, project: Path) -> None:
    environment = start(danlu, project)
    danlu("stop", "digits", cwd=project)
    change_spec(environment, init=("echo ready; exec sleep 1000",) * 4)
    danlu("start", "digits", cwd=project)
    wait_for(lambda: "ready" in danlu("logs", "digits", "init", cwd=project).stdout)
    danlu("stop", "--grace", "0", "digits", cwd=project)
    assert environment.read_state().phase == "Stopped"


def list_commands(danlu: Danlu, project: Path) -> list[str]:
    rows = json.loads(danlu("top", "digits", "--format", "json", cwd=project).stdout)
    return [row["command"] for row in rows]


def set_window_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read_until(terminal: int, wanted: bytes, *, poke: Callable[[], None] | None = None) -> bytes:
    """Read until ``wanted`` arrives; call ``poke`` whenever nothing arrives for a while."""
    output = b""
    while wanted not in output:
        if poke is not None and not select.select([terminal], [], [], 0.2)[0]:
            poke()
            continue
        output += os.read(terminal, 4096)
    return output


def wait_until_gone(pid: int) -> None:
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


def count_lines(path: Path) -> int:
    return path.read_text().count("\n")


def change_spec(environment: EnvironmentDirectory, **changes: Any) -> None:
    environment.write_spec(msgspec.structs.replace(environment.read_spec(), **changes))


def serve_page(port: int) -> str:
    answer = "printf 'HTTP/1.0 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\n'; cat page"
    return f'nc -ll -p {port} -e sh -c "{answer}" >/dev/null 2>&1 &'
