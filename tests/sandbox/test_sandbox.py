from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.errors import MachineError, UsageError
from danlu.sandbox import secrets, userns
from danlu.sandbox.prepare import check_mounts
from danlu.sandbox.sandbox import Sandbox
from danlu.sandbox.types import Mount, ProcessSpec, RootFilesystem
from tests.sandbox.namespace_process import busybox

pytestmark = [pytest.mark.real, pytest.mark.needs("busybox"), pytest.mark.timeout(600)]

Forked = Callable[[Callable[[], Any]], Any]


@dataclass(frozen=True)
class ProgramResult:
    code: int
    lines: list[str]
    upper: list[str]
    left: list[str]


def step(
    home: Path,
    script: str,
    *,
    layers: Sequence[Path] = (),
    args: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    mounts: Sequence[Mount] = (),
    network: bool = False,
    uid: int = 0,
    directory: str = "/",
) -> ProgramResult:
    """One step in a busybox root below ``layers``; must be called in a namespace."""
    base = home / "base"
    if not base.exists():
        busybox(base)
    work, upper = home / "work", home / "upper"
    work.mkdir(exist_ok=True)
    upper.mkdir(exist_ok=True)
    lines: list[str] = []
    process = ProcessSpec(
        tuple(args) or ("/bin/sh", "-c", script),
        {"PATH": "/bin", **(environment or {})},
        working_directory=directory,
        uid=uid,
        gid=uid,
    )

    async def main() -> int:
        sandbox = Sandbox(work)
        return await sandbox.run(
            process,
            RootFilesystem((base, *layers), upper),
            mounts=mounts,
            network=network,
            on_line=lines.append,
        )

    code = anyio.run(main)
    result = sorted(str(path.relative_to(upper)) for path in upper.rglob("*"))
    remaining = [path.name for path in work.iterdir() if path.is_dir()]
    return ProgramResult(code, lines, result, remaining)


def mounts_below(home: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if str(home) in line.split()[4]]


def test_output_comes_by_lines_and_the_exit_code_is_the_programs(
    run_in_namespace: Forked, home: Path
) -> None:
    result = run_in_namespace(lambda: step(home, "echo one; echo two >&2; printf 'a\\rb'; exit 7"))
    assert (result.code, result.lines) == (7, ["one", "two", "a", "b"])


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["/bin/sh", "-c", "kill -9 $$"], 137),
        (["/bin/nothing"], 127),
        (["nothing"], 127),
        (["/etc/passwd"], 126),
        (["/etc"], 126),
        (["/bin/false"], 1),
    ],
)
def test_exit_codes_are_a_shells(
    run_in_namespace: Forked, home: Path, args: list[str], code: int
) -> None:
    result = run_in_namespace(lambda: step(home, "", args=args))
    if args[0] == "/bin/sh":
        # The first process of a namespace cannot kill itself: its child can.
        result = run_in_namespace(
            lambda: step(home, "", args=["/bin/sh", "-c", "sh -c 'kill -9 $$'; exit $?"])
        )
    assert result.code == code


def test_root_below_a_symbolic_link_is_entered(run_in_namespace: Forked, home: Path) -> None:
    link = home.parent / "link"
    link.symlink_to(home)
    assert run_in_namespace(lambda: step(link, "echo here")).lines == ["here"]


def test_upper_contains_only_what_the_step_did(run_in_namespace: Forked, home: Path) -> None:
    def act() -> tuple[ProgramResult, list[str]]:
        ended = step(home, "touch /etc/new; rm /etc/group", network=True, directory="/some/where")
        return ended, mounts_below(home)

    result, mounts = run_in_namespace(act)
    assert result == ProgramResult(0, [], ["etc", "etc/group", "etc/new"], [])
    assert mounts == []


def test_resolv_conf_link_is_mounted_at_its_target(run_in_namespace: Forked, home: Path) -> None:
    def act() -> ProgramResult:
        layer = home / "linked"
        (layer / "etc").mkdir(parents=True)
        (layer / "etc/resolv.conf").symlink_to("../run/systemd/resolve/stub-resolv.conf")
        return step(home, "cat /etc/resolv.conf", layers=[layer], network=True)

    result = run_in_namespace(act)
    assert result.lines == Path("/etc/resolv.conf").read_text().splitlines()
    assert result.upper == []


def test_step_that_does_nothing_leaves_an_empty_upper(run_in_namespace: Forked, home: Path) -> None:
    target = home.parent / "given"
    target.mkdir()
    value = Mount("/deep/new/place", target, readonly=True)
    result = run_in_namespace(
        lambda: step(home, "ls -d /deep/new/place", mounts=[value], network=True)
    )
    assert (result.code, result.upper) == (0, [])


def test_without_network_there_is_only_a_loopback(run_in_namespace: Forked, home: Path) -> None:
    result = run_in_namespace(lambda: step(home, "ip -o link; cat /etc/resolv.conf; env"))
    assert [line.split(": ")[1] for line in result.lines if ": " in line] == ["lo"]
    assert "LOOPBACK,UP" in result.lines[0]
    assert not [line for line in result.lines if "/run/danlu" in line]


def test_files_may_belong_to_any_user(run_in_namespace: Forked, home: Path) -> None:
    result = run_in_namespace(lambda: step(home, "touch /a; chown 5:65534 /a; stat -c %u:%g /a"))
    assert result.lines == ["5:65534"]


def test_other_user_has_its_uid_and_no_capabilities(run_in_namespace: Forked, home: Path) -> None:
    result = run_in_namespace(
        lambda: step(home, "id -u; touch /x 2>/dev/null || echo refused", uid=1000)
    )
    assert result.lines == ["1000", "refused"]


def test_two_hundred_layers_are_one_root(run_in_namespace: Forked, home: Path) -> None:
    def act() -> ProgramResult:
        layers = []
        for number in range(200):
            layer = home / f"layers-with-a-long-name-{number}"
            layer.mkdir()
            (layer / "top").write_text(f"{number}\n")
            (layer / f"n{number}").touch()
            layers.append(layer)
        return step(home, "cat /top; ls -d /n* | grep -c n; ls -d /n* | head -1", layers=layers)

    result = run_in_namespace(act)
    assert result.lines[0] == "199"


def test_device_nodes_created_inside_do_not_work(run_in_namespace: Forked, home: Path) -> None:
    script = (
        "mknod /x c 1 3 2>/dev/null; mknod /dev/x c 1 3 2>/dev/null;"
        "head -c1 /x 2>/dev/null && echo open; head -c1 /dev/x 2>/dev/null && echo open;"
        "chmod 600 /dev/null 2>/dev/null; echo quiet >/dev/null && echo null"
    )
    before = os.stat("/dev/null").st_mode
    result = run_in_namespace(lambda: step(home, script))
    assert result.lines == ["null"]
    assert os.stat("/dev/null").st_mode == before


def test_read_only_mount_cannot_be_written(run_in_namespace: Forked, home: Path) -> None:
    value = home.parent / "given"
    value.write_text("kept")
    mount = Mount("/given", value, readonly=True)
    script = (
        "cat /given; echo no 2>/dev/null >/given; mount -o remount,rw /given 2>/dev/null; echo x"
    )
    result = run_in_namespace(lambda: step(home, script, mounts=[mount]))
    assert result.lines == ["keptx"]
    assert value.read_text() == "kept"


def test_secrets_are_read_inside_and_leave_nothing(run_in_namespace: Forked, home: Path) -> None:
    file = home.parent / "token"
    file.write_text("hush\n")
    file.chmod(0o444)

    def act() -> ProgramResult:
        work = home / "work"
        work.mkdir()
        expected = [("token", "/run/secrets/token")]
        with secrets.mount_secrets(expected, {"token": file}, work=work) as mounts:
            return step(
                home, "cat /run/secrets/token; stat -c %a /run/secrets/token", mounts=mounts
            )

    result = run_in_namespace(act)
    assert result.lines == ["hush", "400"]
    assert result.upper == []


def test_cancelling_ends_every_process(run_in_namespace: Forked, home: Path) -> None:
    marker = f"98765{os.getpid()}"

    def act() -> tuple[list[str], list[str]]:
        base, work = busybox(home / "base"), home / "work"
        work.mkdir()
        started = anyio.Event()
        process = ProcessSpec(
            ("/bin/sh", "-c", f"sleep {marker} & echo started; sleep {marker}"), {"PATH": "/bin"}
        )

        async def main() -> None:
            sandbox = Sandbox(work)

            async def run() -> None:
                await sandbox.run(process, RootFilesystem((base,)), on_line=lambda _: started.set())

            async with anyio.create_task_group() as group:
                group.start_soon(run)
                await started.wait()
                group.cancel_scope.cancel()

        anyio.run(main)
        return running(marker), [path.name for path in work.iterdir() if path.is_dir()]

    assert run_in_namespace(act) == ([], [])


def test_concurrent_steps_do_not_see_each_other(run_in_namespace: Forked, home: Path) -> None:
    def act() -> tuple[dict[str, list[str]], list[str], list[str]]:
        base, work = busybox(home / "base"), home / "work"
        work.mkdir()
        output: dict[str, list[str]] = {}

        async def one(sandbox: Sandbox, name: str) -> None:
            upper = home / name
            upper.mkdir()
            # The pause makes the steps overlap; none may see another even then.
            script = f"echo {name} > /mine; sleep 0.2; cat /mine; ls /dev/shm; touch /dev/shm/x"
            process = ProcessSpec(("/bin/sh", "-c", script), {"PATH": "/bin"})
            output[name] = []
            await sandbox.run(process, RootFilesystem((base,), upper), on_line=output[name].append)

        async def main() -> None:
            sandbox = Sandbox(work)
            async with anyio.create_task_group() as group:
                for number in range(6):
                    group.start_soon(one, sandbox, f"n{number}")

        anyio.run(main)
        return output, [path.name for path in work.iterdir() if path.is_dir()], mounts_below(home)

    names = {f"n{number}": [f"n{number}"] for number in range(6)}
    assert run_in_namespace(act) == (names, [], [])


def running(marker: str) -> list[str]:
    results = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"sleep {marker}" in text:
            results.append(text)
    return results


def test_killing_danlu_ends_every_process(run_in_namespace: Forked, home: Path) -> None:
    marker = f"87654{os.getpid()}"

    def act() -> list[str]:
        # A grandchild is danlu here, so that its death can be watched from the same namespace.
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            busybox(home / "base")
            (home / "work").mkdir()
            process = ProcessSpec(
                ("/bin/sh", "-c", f"sleep {marker} & echo x; exec sleep {marker}"), {"PATH": "/bin"}
            )

            async def main() -> None:
                await Sandbox(home / "work").run(
                    process,
                    RootFilesystem((home / "base",)),
                    on_line=lambda _: print(os.write(write, b"x")),
                )

            anyio.run(main)
            os._exit(0)
        os.close(write)
        os.read(read, 1)
        os.kill(child, 9)
        os.waitpid(child, 0)
        # Nobody can be waited for, since they are not our children: look until they are gone.
        with limit(20):
            while running(marker):
                os.sched_yield()
        return running(marker)

    assert run_in_namespace(act) == []


@contextmanager
def limit(seconds: int) -> Iterator[None]:
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def test_certificates_and_indexes_of_the_machine_are_visible_inside(
    run_in_namespace: Forked, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, wheels = home.parent / "bundle.pem", home.parent / "wheels"
    bundle.write_text("certificates\n")
    wheels.mkdir()
    (wheels / "thing.whl").write_text("wheel")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    script = (
        'cat "$SSL_CERT_FILE"; echo "$https_proxy"; cat /etc/xdg/pip/pip.conf;'
        f" ls /run/danlu/files{wheels}"
    )
    result = run_in_namespace(lambda: step(home, script, network=True))
    assert result.lines[:2] == ["certificates", "http://proxy.example:3128"]
    assert f"find-links = /run/danlu/files{wheels}" in result.lines
    assert result.lines[-1] == "thing.whl"
    assert result.upper == []


def test_configuration_of_the_image_wins(run_in_namespace: Forked, home: Path) -> None:
    def act() -> ProgramResult:
        layer = home / "own"
        (layer / "etc/xdg/pip").mkdir(parents=True)
        (layer / "etc/xdg/pip/pip.conf").write_text("[global]\n# mine\n")
        os.environ["PIP_INDEX_URL"] = "https://index.example/simple"
        return step(home, "cat /etc/xdg/pip/pip.conf", layers=[layer], network=True)

    assert run_in_namespace(act).lines == ["[global]", "# mine"]


def test_failing_runtime_is_a_machine_error(run_in_namespace: Forked, home: Path) -> None:
    def act() -> str:
        try:
            step(home, "true", environment={"A\0B": "x"})
        except MachineError as error:
            return f"{error.message} {error.exit_code}"
        return ""

    assert run_in_namespace(act) == "runc could not start a step 4"


@pytest.mark.parametrize("target", ["relative", "/", "/a/../..", "/proc/x", "/sys", "/dev"])
def test_invalid_mount_target_is_rejected(tmp_path: Path, target: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_mounts([Mount(target, tmp_path)])
    assert caught.value.hint


def test_a_mount_without_a_source_is_rejected_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it does not exist") as caught:
        check_mounts([Mount("/data", tmp_path / "missing")])
    assert "create it" in caught.value.hint


def test_user_outside_the_mapped_ids_is_rejected(run_in_namespace: Forked, home: Path) -> None:
    def act() -> str:
        try:
            step(home, "true", uid=2**31 - 1)
        except MachineError as error:
            return error.message
        return "ran" if not userns.is_rootless() else "ran where it cannot"

    assert run_in_namespace(act) in (
        "ran",
        "user 2147483647 is outside the subordinate ids of this account",
    )


def test_a_second_step_adds_to_the_same_upper(run_in_namespace: Forked, home: Path) -> None:
    def act() -> list[str]:
        step(home, "echo 1 > /one; rm /etc/group")
        return step(home, "cat /one; ls /etc; echo 2 > /two").upper

    assert run_in_namespace(act) == ["etc", "etc/group", "one", "two"]


def test_one_id_is_enough_for_root_only(run_in_namespace: Forked, home: Path) -> None:
    assert run_in_namespace(userns.has_single_id) is False
