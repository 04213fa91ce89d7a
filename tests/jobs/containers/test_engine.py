"""Containers of a job, run sequentially and concurrently by the real runtime."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.errors import MachineError
from danlu.jobs.local.job_network import replica_address
from danlu.sandbox import _linux
from danlu.sandbox.types import ContainerExit, Mount, ResourceLimits
from danlu.util.files import mounts_below
from tests.jobs.containers.engine_rig import EngineRig

pytestmark = [pytest.mark.real, pytest.mark.needs("busybox"), pytest.mark.timeout(120)]

Contained = Callable[..., Any]
GLUTTON = "x=a; while :; do x=$x$x; done"
# Its input never ends: nc would take that for the end of the conversation.
SERVER = "mkfifo /open; echo ready; exec nc -l -p 9000 <>/open"


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [("exit 0", 0, "Completed"), ("exit 9", 9, "Error"), ("kill -9 $$", 137, "Error")],
)
def test_the_exit_code_is_the_programs(
    run_with_rig: Contained, script: str, code: int, reason: str
) -> None:
    async def act(rig: EngineRig) -> ContainerExit:
        return (await rig.run_script(script))[0]

    end = run_with_rig(act)
    assert (end.code, end.reason) == (code, reason)
    assert end.time is not None


def test_a_missing_program_is_an_error(run_with_rig: Contained) -> None:
    async def act(rig: EngineRig) -> ContainerExit:
        return await (await rig.start_words(("no-such-program",))).wait()

    end = run_with_rig(act, shell=False)
    assert (end.code, end.reason) == (127, "StartError")
    assert "no-such-program" in end.message


def test_stdout_and_stderr_are_ordered_and_stdin_is_empty(run_with_rig: Contained) -> None:
    async def act(rig: EngineRig) -> str:
        return (await rig.run_script("for i in 1 2 3; do echo o$i; echo e$i >&2; done; cat"))[1]

    assert run_with_rig(act) == "o1\ne1\no2\ne2\no3\ne3\n"


def test_arguments_follow_the_images_entry_point(run_with_rig: Contained) -> None:
    config = {"Entrypoint": ["echo", "entry"], "Cmd": ["cmd"]}

    async def act(rig: EngineRig) -> list[str]:
        results = []
        for args, arguments in (((), False), (("mine",), True), (("echo", "all"), False)):
            running = await rig.start_words(args, arguments=arguments)
            await running.wait()
            results.append(await rig.read_output(running))
        return results

    assert run_with_rig(act, **config) == ["entry cmd\n", "entry mine\n", "all\n"]


def test_variables_of_the_job_override_the_images(run_with_rig: Contained) -> None:
    async def act(rig: EngineRig) -> str:
        script = "echo $A $B $HOSTNAME $(hostname); pwd"
        return (await rig.run_script(script, environment={"B": "job"}, directory="/etc"))[1]

    output = run_with_rig(act, Env=["A=image", "B=image"], WorkingDir="/bin")
    assert output == "image job job-worker-0 job-worker-0\n/etc\n"


def test_defaults_are_overridden_by_the_image_and_the_job(run_with_rig: Contained) -> None:
    async def act(rig: EngineRig) -> str:
        defaults = {"A": "default", "B": "default", "C": "default"}
        return (await rig.run_script("echo $A $B $C", environment={"B": "job"}, defaults=defaults))[
            1
        ]

    assert run_with_rig(act, Env=["A=image"]) == "image job default\n"


def test_replicas_reach_each_other_by_name(run_with_rig: Contained) -> None:
    async def act(rig: EngineRig) -> str:
        server = await rig.start(SERVER, 1)
        assert await rig.read_output(server) == "ready\n"
        # Between the word and the port being open there is a moment.
        call = "until echo from $HOSTNAME | nc job-worker-1 9000; do sleep 0.02; done"
        assert (await rig.run_script(call, 2))[0].code == 0
        await server.wait()
        return await rig.read_output(server)

    assert run_with_rig(act) == "from job-worker-2\n"


def test_containers_of_a_replica_share_its_network_namespace(
    run_with_rig: Contained,
) -> None:
    async def act(rig: EngineRig) -> tuple[int, int]:
        server = await rig.start(SERVER, 0)
        await rig.read_output(server)
        call = "until echo x | nc 127.0.0.1 9000; do sleep 0.02; done"
        beside = await rig.run_script(call, 0, name="sidecar")
        elsewhere = await rig.run_script("echo x | nc 127.0.0.1 9000", 1)
        return beside[0].code, elsewhere[0].code

    assert run_with_rig(act) == (0, 1)


def test_the_next_attempt_is_reachable_immediately(run_with_rig: Contained) -> None:
    """Neighbours need not learn who has the address: it is the same link-layer address."""

    async def act(rig: EngineRig) -> tuple[list[str], list[str]]:
        received, neighbours = [], []
        for attempt in range(3):
            server = await rig.start(SERVER, 1, attempt=attempt)
            await rig.read_output(server)
            call = f"until echo {attempt} | nc job-worker-1 9000; do sleep 0.02; done"
            show = f"awk '$1 == \"{replica_address(1)}\"' /proc/net/arp"
            neighbours.append((await rig.run_script(f"{call}; {show}", 2))[1])
            await server.wait()
            received.append(await rig.read_output(server))
        return received, neighbours

    received, neighbours = run_with_rig(act)
    assert received == ["0\n", "1\n", "2\n"]
    assert neighbours[0].split()[3].startswith("02:42:")
    assert neighbours == neighbours[:1] * 3


@pytest.mark.needs("slirp4netns", "tun")
def test_containers_reach_the_internet(run_with_rig: Contained, home: Path) -> None:
    own = _own_address()
    if own is None:
        pytest.skip("this machine has a loopback only")
    data = os.urandom(8 << 20)

    async def act(rig: EngineRig) -> tuple[int, str, tuple[str, ...]]:
        script = f"wget -q -O /data http://{own}:{server.server_port}/data && sha256sum /data"
        end, output = await rig.run_script(script)
        return end.code, output, tuple(rig.engine.warnings())

    with _serve_data(own, data) as server:
        code, output, warnings = run_with_rig(act)
    assert code == 0, (output, warnings)
    assert output.split()[0] == hashlib.sha256(data).hexdigest()
    assert not [text for text in warnings if text.startswith("network:")]


@pytest.mark.needs("slirp4netns", "root")
def test_names_are_resolved_by_the_hosts_resolver(run_with_rig: Contained, home: Path) -> None:
    # As systemd-resolved listens: at an address of the loopback, which containers do not reach.
    resolver = home.parent / "resolv.conf"
    resolver.write_text("nameserver 127.77.0.53\n")

    async def act(rig: EngineRig) -> str:
        _linux.mount(str(resolver), "/etc/resolv.conf", flags=_linux.MS_BIND)
        return (await rig.run_script("nslookup data.example"))[1]

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.77.0.53", 53))
        threading.Thread(target=_answer_names, args=(server,), daemon=True).start()
        output = run_with_rig(act)
        # Nobody else is answered: the thread ends.
        server.sendto(b"", server.getsockname())
    assert "192.0.2.77" in output


@pytest.mark.needs("slirp4netns")
def test_the_hosts_loopback_is_not_reachable(run_with_rig: Contained) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        async def act(rig: EngineRig) -> list[int]:
            return [
                (await rig.run_script(f"echo x | nc -w 3 {host} {port}"))[0].code
                for host in ("127.0.0.1", "10.213.0.2")
            ]

        assert run_with_rig(act) == [1, 1]


def test_a_job_without_internet_access_runs_with_a_warning(
    run_with_rig: Contained, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = shutil.which
    monkeypatch.setattr(
        shutil,
        "which",
        lambda name, **more: result(name, **more) if name != "slirp4netns" else None,
    )

    async def act(rig: EngineRig) -> tuple[int, str]:
        server = await rig.start(SERVER, 1)
        await rig.read_output(server)
        call = "until echo x | nc job-worker-1 9000; do sleep 0.02; done"
        end, _ = await rig.run_script(call, 2)
        return end.code, " ".join(rig.engine.warnings())

    code, warnings = run_with_rig(act)
    assert code == 0
    assert "not the Internet: slirp4netns is not installed" in warnings
    assert "apt-get install slirp4netns" in warnings


@contextmanager
def _serve_data(address: str, data: bytes) -> Iterator[ThreadingHTTPServer]:
    """Serve ``data`` at every path, for the time of the block."""

    class DataHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer((address, 0), DataHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def _answer_names(server: socket.socket) -> None:
    """Answer every question for an address (RFC 1035) with 192.0.2.77, until an empty one."""
    while True:
        question, client = server.recvfrom(512)
        if not question:
            return
        end = question.index(b"\0", 12) + 5
        expected = int.from_bytes(question[end - 4 : end - 2], "big")
        count = 1 if expected == 1 else 0
        header = question[:2] + struct.pack("!HHHHH", 0x8180, 1, count, 0, 0)
        record = b"\xc0\x0c" + struct.pack("!HHIH4B", 1, 1, 60, 4, 192, 0, 2, 77)
        server.sendto(header + question[12:end] + record * count, client)


def test_a_host_port_is_forwarded_to_the_containers_loopback(run_with_rig: Contained) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        port = server.getsockname()[1]
        heard: list[bytes] = []
        listener = threading.Thread(target=lambda: heard.append(_first_words(server)))
        listener.start()

        async def act(rig: EngineRig) -> int:
            return (await rig.run_script(f"echo hello | nc 127.0.0.1 {port}"))[0].code

        code = run_with_rig(act, ports=(port,))
        listener.join()
    assert (code, heard) == (0, [b"hello\n"])


def _own_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))
        except OSError:
            return None
        result: str = asking.getsockname()[0]
        return None if result.startswith("127.") else result


def _first_words(server: socket.socket) -> bytes:
    connection, _ = server.accept()
    with connection:
        return connection.recv(100)


def test_volumes_are_mounted_and_read_only_ones_are_not_writable(
    run_with_rig: Contained, home: Path
) -> None:
    for name in ("open", "closed"):
        (home / name).mkdir(mode=0o777)
        (home / name).chmod(0o777)
        (home / name / "x").write_text(f"{name}\n")
    volumes = (
        Mount("/data/below", home / "closed", readonly=True),
        Mount("/data", home / "open"),
        Mount("/etc/one", home / "closed/x"),
    )

    async def act(rig: EngineRig) -> str:
        script = "cat /data/x /data/below/x /etc/one; touch /data/y; touch /data/below/y || echo no"
        return (await rig.run_script(script, volumes=volumes))[1]

    (home / "open" / "below").mkdir()
    assert run_with_rig(act).splitlines()[:3] == ["open", "closed", "closed"]
    assert (home / "open/y").exists()
    assert not (home / "closed/y").exists()


def test_shared_memory_is_half_of_the_hosts_memory(run_with_rig: Contained) -> None:
    async def act(rig: EngineRig) -> str:
        return (await rig.run_script("df -k /dev/shm | awk 'END { print $2 }'"))[1]

    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    assert abs(int(run_with_rig(act)) * 1024 - half) < half // 50


@pytest.mark.needs("root")
def test_exceeding_the_memory_limit_is_oom_killed(run_with_rig: Contained) -> None:
    async def act(rig: EngineRig) -> tuple[ContainerExit, tuple[str, ...]]:
        limits = ResourceLimits(memory=64 << 20)
        if not _enforces_limits(rig):
            return (await rig.run_script("exit 7", limits=limits))[0], tuple(rig.engine.warnings())
        return (await rig.run_script(GLUTTON, limits=limits))[0], ()

    end, warnings = run_with_rig(act)
    if warnings:
        assert end.code == 7
        assert any(text.startswith("resources: not enforced: ") for text in warnings)
    else:
        assert (end.code, end.reason) == (137, "OOMKilled")
        assert end.message == "limit 64Mi"


def _enforces_limits(rig: EngineRig) -> bool:
    from danlu.jobs.local import container_engine

    return container_engine._cgroups is not None and not container_engine._cgroups.missing


@pytest.mark.needs("root")
@pytest.mark.parametrize("shell", [True, False])
def test_cpu_use_is_limited(run_with_rig: Contained, shell: bool) -> None:
    async def act(rig: EngineRig) -> tuple[bool, float]:
        limits = ResourceLimits(cpu=0.2)
        running = await rig.start_words(("awk", "BEGIN { while (1) ; }"), limits=limits)
        await anyio.sleep(1)  # the usage is measured over this time
        used = running.usage()
        await running.stop(grace=0)
        assert used is not None
        return _enforces_limits(rig), used.cpu

    limited, cpu = run_with_rig(act, shell=shell)
    if not limited:
        pytest.skip("this machine gives no cgroup to limit the processor with")
    assert 0 < cpu < 0.6


def test_usage_is_measured_without_limits(run_with_rig: Contained) -> None:
    async def act(rig: EngineRig) -> tuple[float, int]:
        running = await rig.start("x=$(seq 200000); echo ready; sleep 100; true")
        await rig.read_output(running)
        used = running.usage()
        await running.stop(grace=0)
        assert running.usage() is None
        assert used is not None
        return used.cpu, used.memory

    cpu, memory = run_with_rig(act)
    assert 0 <= cpu < 20
    assert memory > 1 << 19


@pytest.mark.parametrize("script", ["sleep 100", "sleep 100; true"])
def test_sigterm_stops_a_container_immediately(run_with_rig: Contained, script: str) -> None:
    async def act(rig: EngineRig) -> int:
        running = await rig.start(f"echo ready; {script}")
        await rig.read_output(running)
        # Longer than the test may take.
        await running.stop(grace=600)
        return (await running.wait()).code

    assert run_with_rig(act) == 143


def test_a_container_that_ignores_sigterm_is_killed_after_the_grace_period(
    run_with_rig: Contained,
) -> None:
    async def act(rig: EngineRig) -> int:
        running = await rig.start("trap '' TERM; echo ready; while :; do sleep 0.05; done")
        await rig.read_output(running)
        await running.stop(grace=0.2)
        return (await running.wait()).code

    assert run_with_rig(act) == 137


def test_exec_runs_in_the_container(run_with_rig: Contained) -> None:
    async def act(rig: EngineRig) -> tuple[ContainerExit, str, int]:
        running = await rig.start("echo x > /made; echo ready; sleep 100", environment={"A": "a"})
        await rig.read_output(running)
        script = "cat /made; echo $A $(hostname); exit 3"
        end, said = await rig.exec(running, "sh", "-c", script)
        await running.stop(grace=1)
        return end, said, (await running.wait()).code

    end, output, code = run_with_rig(act)
    assert (end.code, output) == (3, "x\na job-worker-0\n")
    assert code == 143


def test_processes_left_by_exec_are_killed_with_the_container(run_with_rig: Contained) -> None:
    async def act(rig: EngineRig) -> int:
        running = await rig.start("echo ready; sleep 100")
        await rig.read_output(running)
        end, _ = await rig.exec(running, "sh", "-c", "sleep 100 > /dev/null 2>&1 &")
        assert end.code == 0
        # Longer than the test may take.
        await running.stop(grace=600)
        return (await running.wait()).code

    assert run_with_rig(act) == 143


def test_exec_needs_a_running_container(run_with_rig: Contained) -> None:
    async def act(rig: EngineRig) -> str:
        running = await rig.start("true")
        await running.wait()
        with pytest.raises(MachineError) as caught:
            await rig.exec(running, "true")
        return caught.value.message

    assert "ended" in run_with_rig(act)


def test_missing_gpus_and_images_are_rejected(run_with_rig: Contained) -> None:
    async def act(rig: EngineRig) -> list[tuple[int, str, str]]:
        results = []
        for fields in ({"limits": ResourceLimits(gpus=(1000,))}, {"image": "sha256:" + "0" * 64}):
            with pytest.raises(MachineError) as caught:
                await rig.start("true", **fields)
            error = caught.value
            results.append((error.exit_code, error.message, error.hint))
        return results

    (code, message, _), (missing_code, missing, hint) = run_with_rig(act)
    assert (code, missing_code) == (4, 4)
    assert "NVIDIA driver" in message or "no GPU 1000" in message
    assert "sha256:000" in missing
    assert "danlu" in hint


def test_closing_the_engine_leaves_nothing(run_with_rig: Contained, home: Path) -> None:
    async def act(rig: EngineRig) -> tuple[list[str], list[str], list[str]]:
        for index in range(2):
            running = await rig.start("echo ready; sleep 100", index)
            await rig.read_output(running)
        mounted = mounts_below(home)
        await rig.engine.close()
        work = [path.name for path in (home / "store/tmp").iterdir()]
        return mounted, mounts_below(home), work

    mounted, remaining, work = run_with_rig(act)
    assert mounted
    assert remaining == []
    assert work == []
