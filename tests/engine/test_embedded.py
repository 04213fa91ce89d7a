from __future__ import annotations

import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from danlu.engine.embedded import image_command
from danlu.errors import UsageError
from danlu.graph.image_config import ImageConfig
from danlu.sandbox import container_processes
from danlu.sandbox.launcher import waiting_shell
from danlu.sandbox.launcher.container import ContainerLauncher
from danlu.sandbox.launcher.image_root import ImageRoot
from danlu.sandbox.types import Mount
from tests.sandbox.namespace_process import account, busybox

pytestmark = [pytest.mark.real, pytest.mark.needs("busybox"), pytest.mark.timeout(600)]

Forked = Callable[[Callable[[], Any]], Any]


def prepare(home: Path) -> Path:
    base = home / "base"
    if not base.exists():
        busybox(base)
        (home / "work").mkdir()
    return base


def run_in(
    home: Path, args: Sequence[str], *, config: ImageConfig | None = None, **fields: Any
) -> int:
    """Run a command here; must be called in a namespace."""
    image = ImageRoot((prepare(home),), config or ImageConfig())
    command = image_command.ImageCommand(tuple(args), **fields)
    return image_command.run_command(image, command, ContainerLauncher(home / "work"))


def run(home: Path, *args: str, config: ImageConfig | None = None, **more: Any) -> tuple[int, str]:
    """The exit code and merged output of a command; must be called in a namespace."""
    output = home / "output"
    saved = os.dup(1), os.dup(2)
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    try:
        code = run_in(home, args, config=config, **more)
    finally:
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
    return code, output.read_text()


def run_shell(home: Path, script: str, **more: Any) -> tuple[int, str]:
    return run(home, "sh", "-c", script, **more)


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 9", 9), ("kill -15 $$", 143), ("exec nothing", 127), ("/etc", 126)],
)
def test_exit_code_is_the_programs(
    run_in_namespace: Forked, home: Path, script: str, code: int
) -> None:
    assert run_in_namespace(lambda: run_shell(home, script))[0] == code


def test_output_and_errors_keep_their_order(run_in_namespace: Forked, home: Path) -> None:
    script = "for i in 1 2 3; do echo o$i; echo e$i >&2; done"
    assert run_in_namespace(lambda: run_shell(home, script))[1] == "o1\ne1\no2\ne2\no3\ne3\n"


def test_run_leaves_nothing_behind(run_in_namespace: Forked, home: Path) -> None:
    def act() -> tuple[str, list[str]]:
        run_shell(home, "echo x > /kept; echo x > /etc/passwd")
        _, output = run_shell(home, "cat /kept; head -n1 /etc/passwd")
        return output, [path.name for path in (home / "work").iterdir() if path.is_dir()]

    output, remaining = run_in_namespace(act)
    assert "No such file" in output
    assert "root:x:0:0" in output
    assert remaining == []


def test_files_created_in_the_project_belong_to_the_caller(
    run_in_namespace: Forked, home: Path
) -> None:
    project = home / "project"
    project.mkdir()
    (project / "mine").write_text("read\n")
    code, output = run_in_namespace(
        lambda: run_shell(home, "pwd; cat mine; echo x > made", project=project)
    )
    assert (code, output) == (0, "/workspace\nread\n")
    assert (project / "made").stat().st_uid == project.stat().st_uid
    assert project.stat().st_uid in (os.geteuid(), account().pw_uid)


def test_given_variables_win_over_the_images(run_in_namespace: Forked, home: Path) -> None:
    config = ImageConfig(environment=(("A", "image"), ("B", "image")), working_directory="/etc")
    code, output = run_in_namespace(
        lambda: run_shell(home, "echo $A $B $HOME; pwd", config=config, environment={"B": "given"})
    )
    assert (code, output) == (0, "image given /root\n/etc\n")


def test_user_is_looked_up_in_the_image(run_in_namespace: Forked, home: Path) -> None:
    assert run_in_namespace(lambda: run_shell(home, "id", user="worker"))[1] == (
        "uid=1000(worker) gid=1000(worker) groups=50(extra)\n"
    )


def test_command_of_the_image_is_the_default(run_in_namespace: Forked, home: Path) -> None:
    config = ImageConfig(entrypoint=("sh", "-c"), command=("echo mine",))
    assert run_in_namespace(lambda: run(home, config=config)) == (0, "mine\n")


def test_volumes_are_mounted_at_their_targets(run_in_namespace: Forked, home: Path) -> None:
    data = home / "data"
    data.mkdir()
    (data / "x").write_text("x\n")
    volume = Mount("/data/in", data, readonly=True)
    script = "cat /data/in/x; touch /data/in/y 2>/dev/null || echo closed"
    assert run_in_namespace(lambda: run_shell(home, script, volumes=[volume]))[1] == "x\nclosed\n"


def test_root_without_a_shell_runs_the_program(run_in_namespace: Forked, home: Path) -> None:
    def act() -> list[int]:
        base = prepare(home)
        (base / "bin/sh").unlink()
        return [run(home, name)[0] for name in ("true", "false", "nothing")]

    assert run_in_namespace(act) == [0, 1, 127]


def test_closed_output_pipe_ends_the_program(run_in_namespace: Forked, home: Path) -> None:
    def act() -> int:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            os.dup2(write, 1)
            args = ["sh", "-c", "while :; do echo y || exit 1; done"]
            os._exit(run_in(home, args))
        os.close(write)
        os.read(read, 2)
        os.close(read)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert run_in_namespace(act) != 0


def run_and_signal(
    home: Path, number: int, args: Sequence[str], *, shell: bool, ready: str = ""
) -> tuple[int, str]:
    """Run in a child and send it a signal, once it printed or (``ready``) is that command."""
    base = prepare(home)
    if not shell:
        (base / "bin/sh").rename(base / "bin/ash")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 1)
        os.dup2(write, 2)
        os._exit(run_in(home, args))
    os.close(write)
    output = b"" if ready else os.read(read, 100)
    while ready and not any(line.startswith(ready) for line in commands()):
        os.sched_yield()
    os.kill(child, number)
    _, status = os.waitpid(child, 0)
    while chunk := os.read(read, 100):
        output += chunk
    return os.waitstatus_to_exitcode(status), output.decode()


def commands() -> list[str]:
    """The command lines of all processes."""
    results = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            results.append(path.read_text(errors="replace").replace("\0", " "))
    return results


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("shell", [True, False])
def test_signal_ends_a_program_that_does_not_handle_it(
    run_in_namespace: Forked, home: Path, number: int, shell: bool
) -> None:
    ready = f"sleep 4{os.getpid()}"
    code, _ = run_in_namespace(
        lambda: run_and_signal(home, number, ready.split(), shell=shell, ready=ready)
    )
    assert code == 128 + number


def test_a_signal_before_the_program_starts_ends_the_container_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The runtime's own process would report it as a failure to start."""
    monkeypatch.setattr(container_processes, "is_program_running", lambda keeper: False)
    # Not by SIGINT: runc's process handles it.
    ignoring = (
        "import signal; signal.signal(2, signal.SIG_IGN); print('ready', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", ignoring], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        first.stdout.readline()
        monkeypatch.setattr(container_processes, "find_container_init", lambda keeper: first.pid)
        assert not waiting_shell.send_signal(1, signal.SIGINT)
        assert first.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("is_forked", [True, False])
def test_a_signal_is_not_lost_before_the_shell_has_started_the_program(
    monkeypatch: pytest.MonkeyPatch, is_forked: bool
) -> None:
    first, copy = 10, 11
    shell = ["/bin/sh", "-c", waiting_shell.WAIT_SCRIPT_ONE_STREAM]
    killed: list[int] = []
    monkeypatch.setattr(container_processes, "find_container_init", lambda keeper: first)
    monkeypatch.setattr(container_processes, "is_program_running", lambda keeper: True)
    monkeypatch.setattr(container_processes, "read_cmdline", lambda process: shell)
    monkeypatch.setattr(container_processes, "kill_container", killed.append)
    monkeypatch.setattr(
        "danlu.util.process_tree.child_pids", lambda process: [copy] if is_forked else []
    )
    assert not waiting_shell.send_signal(1, signal.SIGINT)
    assert killed == [1]


def test_signal_that_the_caller_ignores_is_not_forwarded(
    run_in_namespace: Forked, home: Path
) -> None:
    def act() -> tuple[int, str]:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # Nothing must happen, so there is no event to wait for.
        script = "echo ready; sleep 0.3; echo lived"
        return run_and_signal(home, signal.SIGHUP, ["sh", "-c", script], shell=True)

    assert run_in_namespace(act) == (0, "ready\nlived\n")


def test_background_processes_end_with_the_program(run_in_namespace: Forked, home: Path) -> None:
    marker = f"sleep 5{os.getpid()}"

    def act() -> tuple[int, list[str]]:
        code, _ = run_shell(home, f"{marker} & exit 4")
        return code, [line for line in commands() if line.startswith(marker)]

    assert run_in_namespace(act) == (4, [])


@pytest.mark.parametrize("shell", [True, False])
def test_program_handles_its_own_signals(run_in_namespace: Forked, home: Path, shell: bool) -> None:
    name = "sh" if shell else "ash"
    script = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    code, output = run_in_namespace(
        lambda: run_and_signal(home, signal.SIGTERM, [name, "-c", script], shell=shell)
    )
    assert (code, output) == (3, "ready\ncaught\n")


class PseudoTerminal:
    """The other end of a terminal."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.text = ""

    def type(self, keys: str) -> None:
        os.write(self.handle, keys.encode())

    def until(self, wanted: str, *, typing: str = "") -> None:
        """Read until ``wanted`` appears; discard the output before it.

        ``typing`` is typed each second in which nothing comes.
        """
        quiet = 0
        self.type(typing)
        while wanted not in self.text:
            assert quiet < 20, f"{wanted!r} never came: {self.text!r}"
            if not select.select([self.handle], [], [], 1)[0]:
                quiet += 1
                self.type(typing)
                continue
            try:
                chunk = os.read(self.handle, 4096)
            except OSError:
                chunk = b""
            assert chunk, f"{wanted!r} never came: {self.text!r}"
            self.text += chunk.decode(errors="replace")
        self.text = self.text.partition(wanted)[2]


def resize(handle: int, rows: int, columns: int) -> None:
    ioctl(handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def test_terminal_is_connected_resized_and_restored(run_in_namespace: Forked, home: Path) -> None:
    def act() -> tuple[int, bool]:
        child, handle = pty.fork()
        if child == 0:
            config = ImageConfig(environment=(("PS1", "ready> "),))
            os._exit(run_in(home, ["sh"], config=config, terminal=True))
        before = termios.tcgetattr(handle)
        screen = PseudoTerminal(handle)
        screen.until("ready> ")
        resize(handle, 33, 77)
        # The size follows a signal: ask until it is there.
        screen.type("until [ \"$(stty size)\" = '33 77' ]; do :; done; tty; echo si''zed\n")
        screen.until("/dev/pts/0")
        screen.until("sized")
        screen.type("echo st''arted; sleep 100\n")
        screen.until("started")
        # A shell that is between two programs may swallow one.
        screen.until("ready> ", typing="\x03")
        screen.type("exit 5\n")
        _, status = os.waitpid(child, 0)
        same = termios.tcgetattr(handle)[:4] == before[:4]
        return os.waitstatus_to_exitcode(status), same

    assert run_in_namespace(act) == (5, True)


def test_ctrl_c_ends_a_program_on_a_terminal(run_in_namespace: Forked, home: Path) -> None:
    def act() -> int:
        child, handle = pty.fork()
        if child == 0:
            args = ["sh", "-c", "echo ready; sleep 100"]
            code = run_in(home, args, terminal=True)
            os._exit(code)
        screen = PseudoTerminal(handle)
        screen.until("ready")
        screen.type("\x03")
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert run_in_namespace(act) == 130


def on_terminal(home: Path, script: str, act: Callable[[PseudoTerminal], None]) -> int:
    """The exit code of a script that runs on a terminal, on which ``act`` happens once it began."""
    child, handle = pty.fork()
    if child == 0:
        args = ["sh", "-c", script]
        code = run_in(home, args, terminal=True)
        os._exit(code)
    screen = PseudoTerminal(handle)
    screen.until("ready")
    act(screen)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("code", [0, 5])
def test_program_that_catches_ctrl_c_keeps_its_exit_code(
    run_in_namespace: Forked, home: Path, code: int
) -> None:
    script = f"trap 'exit {code}' INT; echo ready; while :; do sleep 0.05; done"
    assert (
        run_in_namespace(lambda: on_terminal(home, script, lambda screen: screen.type("\x03")))
        == code
    )


def test_program_whose_terminal_is_closed_keeps_its_exit_code(
    run_in_namespace: Forked, home: Path
) -> None:
    script = "trap 'exit 5' HUP; echo ready; while :; do sleep 0.05; done"
    assert (
        run_in_namespace(lambda: on_terminal(home, script, lambda screen: os.close(screen.handle)))
        == 5
    )


def test_init_commands_run_before_the_program_in_its_container(
    run_in_namespace: Forked, home: Path
) -> None:
    init = ["mkdir /made && pwd", 'echo it\\\'s "$HOME" > /made/x']
    code, output = run_in_namespace(lambda: run_shell(home, "cat /made/x", init=init))
    assert (code, output) == (0, "/\nit's /root\n")


def test_init_commands_do_not_read_the_programs_input(run_in_namespace: Forked, home: Path) -> None:
    def act() -> tuple[int, str]:
        read, write = os.pipe()
        os.write(write, b"line\n")
        os.close(write)
        os.dup2(read, 0)
        return run_shell(home, "cat", init=["cat; echo init"])

    assert run_in_namespace(act) == (0, "init\nline\n")


def test_a_failed_init_command_is_named_and_ends_the_run(
    run_in_namespace: Forked, home: Path
) -> None:
    init = ["echo first", "exit 7 # it's\x1b[31m", "echo later"]
    assert run_in_namespace(lambda: run_shell(home, "echo never", init=init)) == (
        1,
        "first\nerror: runtime.init failed with exit code 7: exit 7 # it's\\x1b[31m\n",
    )


def test_init_needs_a_shell(run_in_namespace: Forked, home: Path) -> None:
    def act() -> str:
        (prepare(home) / "bin/sh").unlink()
        with pytest.raises(UsageError) as caught:
            run(home, "true", init=["true"])
        return caught.value.hint

    assert "--no-init" in run_in_namespace(act)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_init_commands(run_in_namespace: Forked, home: Path, number: int) -> None:
    def act() -> int:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.signal(number, signal.SIG_DFL)
            os.dup2(write, 2)
            init = ["echo waiting; sleep 600; echo never"]
            args = ["echo", "never"]
            os._exit(run_in(home, args, init=init))
        os.close(write)
        assert os.read(read, 100) == b"waiting\n"
        os.kill(child, number)
        _, status = os.waitpid(child, 0)
        assert b"never" not in os.read(read, 100)
        return os.waitstatus_to_exitcode(status)

    assert run_in_namespace(act) == 128 + number


def test_shared_memory_has_the_given_size(run_in_namespace: Forked, home: Path) -> None:
    script = "stat -f -c %b*%S /dev/shm"
    code, output = run_in_namespace(lambda: run_shell(home, script, shm_size=48 << 20))
    assert code == 0
    blocks, size = output.strip().split("*")
    assert int(blocks) * int(size) == 48 << 20


def test_every_user_can_write_to_shared_memory(run_in_namespace: Forked, home: Path) -> None:
    script = "id -u; stat -c %a /dev/shm; touch /dev/shm/made && echo made"
    code, output = run_in_namespace(lambda: run_shell(home, script, user="7:7"))
    assert (code, output) == (0, "7\n1777\nmade\n")


def test_mounts_below_the_home_directory_follow_the_user(
    run_in_namespace: Forked, home: Path
) -> None:
    data = home / "data"
    data.mkdir()
    (data / "x").write_text("x\n")
    volume = Mount("~/.cache/data", data)
    script = "echo $HOME; cat ~/.cache/data/x"
    assert run_in_namespace(lambda: run_shell(home, script, volumes=[volume]))[1] == "/root\nx\n"
    (data / "x").chmod(0o644)
    script = "echo $HOME; cat ~/.cache/data/x; touch ~/.cache/y && stat -c %U ~/.cache"
    output = run_in_namespace(lambda: run_shell(home, script, volumes=[volume], user="worker"))[1]
    assert output.endswith("\nx\nworker\n"), "the user may write next to the mount"
    assert not output.startswith("/root\n")
