"""Creation of containers in Docker and Podman, and translation of their errors."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from danlu.engine.docker.changes import parse_diff
from danlu.engine.docker.command import DockerCommand, render_variables
from danlu.engine.docker.commands import choose_user
from danlu.engine.docker.images import find_common_layers
from danlu.engine.docker.settings import DockerSettings, HostAccount, render_create, render_gpus
from danlu.engine.environment_directory import EnvironmentSpec
from danlu.environments.processes import parse_processes
from danlu.errors import MachineError, OutsideError, UsageError
from danlu.oci.digest import DiffId
from danlu.sandbox.types import Mount, ResourceLimits
from danlu.sandbox.users import ResolvedUser

SPEC = EnvironmentSpec("digits", "sha256:1", datetime.now(UTC), project="/home/me/digits")
SETTINGS = DockerSettings("box:1", "0:0", {"A": "secret"})


def test_a_container_gets_the_project_limits_and_variables() -> None:
    spec = EnvironmentSpec(
        **{
            **{name: getattr(SPEC, name) for name in ("name", "image", "created", "project")},
            "limits": ResourceLimits(cpu=1.5, memory=1 << 30),
            "shm_size": 64 << 20,
            "environment": {"B": "too"},
        }
    )
    args, passed = render_create("danlu-digits-1", spec, SETTINGS)
    text = " ".join(args)
    assert "--cpus 1.5 --memory 1073741824 --shm-size 67108864" in text
    assert "--mount type=bind,source=/home/me/digits,target=/workspace" in text
    assert passed == {"A": "secret", "DANLU_ENVIRONMENT": "digits", "B": "too"}
    assert "secret" not in text


def test_variables_that_the_command_line_reads_itself_are_arguments() -> None:
    options, passed = render_variables({"PATH": "/opt/bin", "DOCKER_HOST": "x", "TOKEN": "t"})
    assert options == ["--env", "PATH=/opt/bin", "--env", "DOCKER_HOST=x", "--env", "TOKEN"]
    assert passed == {"TOKEN": "t"}


@pytest.mark.parametrize("path", ["/a,b", '/a"b', "/a\nb"])
def test_a_path_that_the_option_cannot_express_is_refused(path: str) -> None:
    settings = DockerSettings("box:1", "0:0", {}, (Mount("/data", Path(path)),))
    with pytest.raises(UsageError, match="cannot mount"):
        render_create("danlu-digits-1", SPEC, settings)


ROOT = ResolvedUser(0, 0, (), "/root")
ENVD = ResolvedUser(1000, 1000, (), "/home/envd")


@pytest.mark.parametrize(
    ("engine", "text", "user", "maps", "expected"),
    [
        ("docker", "", ROOT, True, ("0:0", None, ())),
        ("podman", "envd", ENVD, True, ("envd", None, ("--userns", "keep-id:uid=1000,gid=1000"))),
        ("docker", "envd", ENVD, True, ("envd", None, ())),
        (
            "docker",
            "envd",
            ENVD,
            False,
            ("1234:1235", HostAccount("envd", 1234, 1235, "/home/envd"), ()),
        ),
        ("docker", "", ROOT, False, ("1234:1235", HostAccount("me", 1234, 1235, "/home/me"), ())),
    ],
)
def test_new_files_belong_to_the_user_of_this_machine(
    engine: str,
    text: str,
    user: ResolvedUser,
    maps: bool,
    expected: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.getuid", lambda: 1234)
    monkeypatch.setattr("os.getgid", lambda: 1235)
    account = type("Account", (), {"pw_name": "me"})
    monkeypatch.setattr("pwd.getpwuid", lambda uid: account)
    assert choose_user(engine, text, user, maps_users=maps) == expected


def test_root_needs_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 0)
    assert choose_user("docker", "envd", ENVD, maps_users=False) == ("envd", None, ())


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MachineError, match="docker is not installed"):
        DockerCommand("docker").run("info")


@pytest.mark.parametrize(
    ("stderr", "type", "expected"),
    [
        (
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."
            " Is the docker daemon running?",
            MachineError,
            "Cannot connect",
        ),
        (
            "permission denied while trying to connect to the Docker daemon socket",
            MachineError,
            "permission denied",
        ),
        ("Error: no space left\nSee 'docker run --help'.", OutsideError, "no space left"),
        ("\x1b[31mbad\x1b[0m", OutsideError, r"\\x1b\[31mbad"),
        ("", OutsideError, "it printed no error"),
    ],
)
def test_errors_of_the_command_line_have_one_cause(
    stderr: str, type: type[Exception], expected: str
) -> None:
    with pytest.raises(type, match=expected):
        raise DockerCommand("docker").interpret_error("run", stderr)


def test_a_long_error_keeps_its_cause_which_comes_last() -> None:
    layers = ":".join(f"/var/lib/containers/storage/overlay/l/{'X' * 26}" for _ in range(8))
    stderr = f'Error: mounting storage: mount overlay:{layers}, data: "x": invalid argument'
    error = DockerCommand("podman").interpret_error("start", stderr)
    assert error.message.endswith(": invalid argument")


def test_the_lowest_common_layers_are_found() -> None:
    a, b, c, d = (DiffId(f"sha256:{letter * 64}") for letter in "abcd")
    assert find_common_layers((a, b, c), [(a,), (a, b, d), (b, c)]) == (a, b)
    assert find_common_layers((a, b), [(d, a, b), ()]) == ()
    assert find_common_layers((a, b), []) == ()


def test_the_list_of_changes_is_read() -> None:
    output = "C /root\nA /root/x\nD /bin/awk\nX /y\nnonsense\nC /etc/../etc/hosts\n"
    assert parse_diff(output) == {"root", "root/x", "bin/awk", "etc/hosts"}


def test_processes_are_read_from_untrusted_output() -> None:
    fields = " ".join(["S", "0", "7", "7", *["0"] * 7, "150", "50", *["0"] * 8, "10", "0"])
    text = f"7 (a ) b) {fields}\nsleep 9 \nx (y) {fields}\nlost\n8 (short) S 0\n\n9 (z) {fields}\n"
    (row,) = parse_processes(text)
    assert (row.pid, row.cpu, row.memory, row.command) == (7, 2.0, 10 * 4096, "sleep 9")


@pytest.mark.parametrize(
    ("gpus", "docker", "podman"),
    [
        ("", "", ""),
        ("none", "", ""),
        ("all", "--gpus all", "--device nvidia.com/gpu=all"),
        ("2", "--gpus 2", "--device nvidia.com/gpu=0 --device nvidia.com/gpu=1"),
        ("0,2", '--gpus "device=0,2"', "--device nvidia.com/gpu=0 --device nvidia.com/gpu=2"),
    ],
)
def test_gpus_are_options_of_the_engine(gpus: str, docker: str, podman: str) -> None:
    assert " ".join(render_gpus("docker", gpus)) == docker
    assert " ".join(render_gpus("podman", gpus)) == podman


def test_missing_devices_name_the_toolkit() -> None:
    stderr = "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all\n"
    error = DockerCommand("podman").interpret_error("create", stderr)
    assert isinstance(error, MachineError)
    assert "nvidia-container-toolkit" in error.hint
