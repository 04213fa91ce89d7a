"""Containers of a job, one by one and side by side, by the real runtime."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.errors import MachineError
from danlu.jobs.local.types import Exit, Limits, Volume
from danlu.util.files import mounts_below
from tests.jobs.containers.rig import Rig

pytestmark = [pytest.mark.real, pytest.mark.needs("busybox"), pytest.mark.timeout(120)]

Contained = Callable[..., Any]
GLUTTON = "x=a; while :; do x=$x$x; done"
# Its input never ends: nc would take that for the end of the conversation.
SERVER = "mkfifo /open; echo ready; exec nc -l -p 9000 <>/open"


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [("exit 0", 0, "Completed"), ("exit 9", 9, "Error"), ("kill -9 $$", 137, "Error")],
)
def test_the_end_is_the_programs(contained: Contained, script: str, code: int, reason: str) -> None:
    async def act(rig: Rig) -> Exit:
        return (await rig.ran(script))[0]

    end = contained(act)
    assert (end.code, end.reason) == (code, reason)
    assert end.time is not None


def test_a_program_that_is_not_there_is_named(contained: Contained) -> None:
    async def act(rig: Rig) -> Exit:
        return await (await rig.start_words(("no-such-program",))).wait()

    end = contained(act, shell=False)
    assert (end.code, end.reason) == (127, "StartError")
    assert "no-such-program" in end.message


def test_output_and_errors_come_in_their_order_and_nothing_goes_in(contained: Contained) -> None:
    async def act(rig: Rig) -> str:
        return (await rig.ran("for i in 1 2 3; do echo o$i; echo e$i >&2; done; cat"))[1]

    assert contained(act) == "o1\ne1\no2\ne2\no3\ne3\n"


def test_arguments_follow_the_images_entry_point(contained: Contained) -> None:
    config = {"Entrypoint": ["echo", "entry"], "Cmd": ["cmd"]}

    async def act(rig: Rig) -> list[str]:
        found = []
        for args, arguments in (((), False), (("mine",), True), (("echo", "all"), False)):
            running = await rig.start_words(args, arguments=arguments)
            await running.wait()
            found.append(await rig.said(running))
        return found

    assert contained(act, **config) == ["entry cmd\n", "entry mine\n", "all\n"]


def test_variables_of_the_job_are_over_the_images(contained: Contained) -> None:
    async def act(rig: Rig) -> str:
        script = "echo $A $B $HOSTNAME $(hostname); pwd"
        return (await rig.ran(script, environment={"B": "job"}, directory="/etc"))[1]

    said = contained(act, Env=["A=image", "B=image"], WorkingDir="/bin")
    assert said == "image job job-worker-0 job-worker-0\n/etc\n"


def test_two_replicas_talk_to_each_other_by_name(contained: Contained) -> None:
    async def act(rig: Rig) -> str:
        server = await rig.start(SERVER, 1)
        assert await rig.said(server) == "ready\n"
        # Between the word and the port being open there is a moment.
        call = "until echo from $HOSTNAME | nc job-worker-1 9000; do sleep 0.02; done"
        assert (await rig.ran(call, 2))[0].code == 0
        await server.wait()
        return await rig.said(server)

    assert contained(act) == "from job-worker-2\n"


def test_the_containers_of_a_replica_share_its_network_and_other_replicas_do_not(
    contained: Contained,
) -> None:
    async def act(rig: Rig) -> tuple[int, int]:
        server = await rig.start(SERVER, 0)
        await rig.said(server)
        call = "until echo x | nc 127.0.0.1 9000; do sleep 0.02; done"
        beside = await rig.ran(call, 0, name="sidecar")
        elsewhere = await rig.ran("echo x | nc 127.0.0.1 9000", 1)
        return beside[0].code, elsewhere[0].code

    assert contained(act) == (0, 1)


def test_the_next_attempt_at_a_replica_is_reached_at_once(contained: Contained) -> None:
    async def act(rig: Rig) -> list[str]:
        found = []
        for attempt in range(3):
            server = await rig.start(SERVER, 1, attempt=attempt)
            await rig.said(server)
            call = f"until echo {attempt} | nc job-worker-1 9000; do sleep 0.02; done"
            began = time.monotonic()
            await rig.ran(call, 2)
            assert time.monotonic() - began < 2, "the neighbours had to learn who has the address"
            await server.wait()
            found.append(await rig.said(server))
        return found

    assert contained(act) == ["0\n", "1\n", "2\n"]


@pytest.mark.needs("slirp4netns", "root")
def test_containers_reach_what_is_outside(contained: Contained) -> None:
    own = _own_address()
    if own is None:
        pytest.skip("this machine has a loopback only")
    with socket.create_server((own, 0)) as server:
        server.settimeout(30)
        port = server.getsockname()[1]

        async def act(rig: Rig) -> tuple[int, tuple[str, ...]]:
            end, _ = await rig.ran(f"echo hello | nc -w 5 {own} {port}")
            return end.code, tuple(rig.engine.warnings())

        heard: list[bytes] = []
        listener = threading.Thread(target=lambda: heard.append(_first_words(server)))
        listener.start()
        code, warnings = contained(act)
        if warnings:
            assert "nothing outside" in warnings[0]
            assert code != 0
            # Nobody called: let the listener go.
            socket.create_connection((own, port)).close()
        listener.join()
    assert bool(warnings) or heard == [b"hello\n"]


def test_a_port_of_this_machine_is_found_at_the_containers_own(contained: Contained) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        port = server.getsockname()[1]
        heard: list[bytes] = []
        listener = threading.Thread(target=lambda: heard.append(_first_words(server)))
        listener.start()

        async def act(rig: Rig) -> int:
            return (await rig.ran(f"echo hello | nc 127.0.0.1 {port}"))[0].code

        code = contained(act, ports=(port,))
        listener.join()
    assert (code, heard) == (0, [b"hello\n"])


def _own_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))
        except OSError:
            return None
        found: str = asking.getsockname()[0]
        return None if found.startswith("127.") else found


def _first_words(server: socket.socket) -> bytes:
    connection, _ = server.accept()
    with connection:
        return connection.recv(100)


def test_volumes_are_seen_and_read_only_ones_are_closed(contained: Contained, home: Path) -> None:
    for name in ("open", "closed"):
        (home / name).mkdir(mode=0o777)
        (home / name).chmod(0o777)
        (home / name / "x").write_text(f"{name}\n")
    volumes = (
        Volume(home / "closed", "/data/below", readonly=True),
        Volume(home / "open", "/data"),
        Volume(home / "closed/x", "/etc/one"),
    )

    async def act(rig: Rig) -> str:
        script = "cat /data/x /data/below/x /etc/one; touch /data/y; touch /data/below/y || echo no"
        return (await rig.ran(script, volumes=volumes))[1]

    (home / "open" / "below").mkdir()
    assert contained(act).splitlines()[:3] == ["open", "closed", "closed"]
    assert (home / "open/y").exists()
    assert not (home / "closed/y").exists()


def test_shared_memory_is_half_of_the_machines(contained: Contained) -> None:
    async def act(rig: Rig) -> str:
        return (await rig.ran("df -k /dev/shm | awk 'END { print $2 }'"))[1]

    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    assert abs(int(contained(act)) * 1024 - half) < half // 50


@pytest.mark.needs("root")
def test_more_memory_than_the_limit_is_told_as_that(contained: Contained) -> None:
    async def act(rig: Rig) -> tuple[Exit, tuple[str, ...]]:
        limits = Limits(memory=64 << 20)
        if not _limits(rig):
            return (await rig.ran("exit 7", limits=limits))[0], tuple(rig.engine.warnings())
        return (await rig.ran(GLUTTON, limits=limits))[0], ()

    end, warnings = contained(act)
    if warnings:
        assert end.code == 7
        assert any(text.startswith("resources: not enforced: ") for text in warnings)
    else:
        assert (end.code, end.reason) == (137, "OOMKilled")
        assert "67 MB" in end.message


def _limits(rig: Rig) -> bool:
    from danlu.jobs.local import container

    return container._groups is not None and not container._groups.missing


@pytest.mark.needs("root")
@pytest.mark.parametrize("shell", [True, False])
def test_no_more_of_the_processor_is_used_than_the_limit(contained: Contained, shell: bool) -> None:
    async def act(rig: Rig) -> float:
        limits = Limits(cpu=0.2)
        running = await rig.start_words(("awk", "BEGIN { while (1) ; }"), limits=limits)
        await anyio.sleep(1)
        used = running.usage()
        await running.end(grace=0)
        assert used is not None
        return used.cpu if _limits(rig) else -1.0

    used = contained(act, shell=shell)
    assert used == -1.0 or 0 < used < 0.6


def test_what_is_used_is_known_without_limits(contained: Contained) -> None:
    async def act(rig: Rig) -> tuple[float, int]:
        running = await rig.start("x=$(seq 200000); echo ready; sleep 100; true")
        await rig.said(running)
        used = running.usage()
        await running.end(grace=0)
        assert running.usage() is None
        assert used is not None
        return used.cpu, used.memory

    cpu, memory = contained(act)
    assert 0 <= cpu < 20
    assert memory > 1 << 19


@pytest.mark.parametrize("script", ["sleep 100", "sleep 100; true"])
def test_an_order_to_end_is_heeded_at_once(contained: Contained, script: str) -> None:
    async def act(rig: Rig) -> tuple[int, float]:
        running = await rig.start(f"echo ready; {script}")
        await rig.said(running)
        began = time.monotonic()
        await running.end(grace=30)
        return (await running.wait()).code, time.monotonic() - began

    code, seconds = contained(act)
    assert code == 143
    assert seconds < 5


def test_who_does_not_heed_it_is_killed_after_the_grace(contained: Contained) -> None:
    async def act(rig: Rig) -> int:
        running = await rig.start("trap '' TERM; echo ready; while :; do sleep 0.05; done")
        await rig.said(running)
        await running.end(grace=0.2)
        return (await running.wait()).code

    assert contained(act) == 137


def test_a_further_program_runs_beside(contained: Contained) -> None:
    async def act(rig: Rig) -> tuple[Exit, str, int]:
        running = await rig.start("echo x > /made; echo ready; sleep 100", environment={"A": "a"})
        await rig.said(running)
        script = "cat /made; echo $A $B $(hostname); exit 3"
        end, said = await rig.exec(running, "sh", "-c", script, B="b")
        await running.end(grace=1)
        return end, said, (await running.wait()).code

    end, said, code = contained(act)
    assert (end.code, said) == (3, "x\na b job-worker-0\n")
    assert code == 143


def test_what_a_further_program_leaves_ends_with_the_container(contained: Contained) -> None:
    async def act(rig: Rig) -> float:
        running = await rig.start("echo ready; sleep 100")
        await rig.said(running)
        end, _ = await rig.exec(running, "sh", "-c", "sleep 100 > /dev/null 2>&1 &")
        assert end.code == 0
        began = time.monotonic()
        await running.end(grace=5)
        return time.monotonic() - began

    assert contained(act) < 4


def test_a_further_program_needs_a_container_that_runs(contained: Contained) -> None:
    async def act(rig: Rig) -> str:
        running = await rig.start("true")
        await running.wait()
        with pytest.raises(MachineError) as caught:
            await rig.exec(running, "true")
        return caught.value.message

    assert "ended" in contained(act)


def test_gpus_and_strange_images_are_refused(contained: Contained) -> None:
    async def act(rig: Rig) -> list[tuple[int, str, str]]:
        found = []
        for fields in ({"limits": Limits(gpus=(0,))}, {"image": "sha256:" + "0" * 64}):
            with pytest.raises(MachineError) as caught:
                await rig.start("true", **fields)
            error = caught.value
            found.append((error.exit_code, error.message, error.hint))
        return found

    (code, message, _), (missing_code, missing, hint) = contained(act)
    assert (code, missing_code) == (4, 4)
    assert "GPU" in message
    assert "sha256:000" in missing
    assert "danlu" in hint


def test_nothing_is_left_when_the_engine_is_closed(contained: Contained, home: Path) -> None:
    async def act(rig: Rig) -> tuple[list[str], list[str], list[str]]:
        for index in range(2):
            running = await rig.start("echo ready; sleep 100", index)
            await rig.said(running)
        mounted = mounts_below(home)
        await rig.engine.close()
        work = [path.name for path in (home / "store/tmp").iterdir()]
        return mounted, mounts_below(home), work

    mounted, left, work = contained(act)
    assert mounted
    assert left == []
    assert work == []
