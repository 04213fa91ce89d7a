"""Both builders give the same images: layer by layer, so paths, modes, owners, times and bytes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from danlu.util.files import mounts_below
from tests.conftest import Danlu, program_in, remove_tree
from tests.oci.registries import debian_registry
from tests.ports import free_port

pytestmark = [pytest.mark.real, pytest.mark.needs("root", "buildkitd", "buildctl")]

TLS_OPTIONS = {"cert": "cert", "key": "key", "cacert": "ca"}
NEEDS_REGISTRY = pytest.mark.needs("docker-registry")
USER, PASSWORD = "someone", "correct-horse-battery"
#: The password, encrypted with bcrypt as ``htpasswd -B`` does.
HTPASSWD = f"{USER}:$2b$05$abcdefghijklmnopqrstuuSnF5tLPqPFqc0z9CY0HcSLFbSRlL67u"

#: Build files by what they are about. A step must give the same bytes each time it runs.
FILES = {
    "packages and files": """\
    install.apt_packages(name=["make"])
    install.python()
    install.python_packages(name=["packaging"])
    io.copy("data", "/data")
    runtime.environ(env={"A": "1"})
    runtime.command(commands={"hello": "echo hello"})
""",
    "a wheel built from source, and the project mounted": """\
    install.python()
    install.python_packages(name=["./package"])
    run(commands=["python -c 'import answer; print(answer.value)' > /srv/value"], mount_host=True)
""",
    "files of another function's result": """\
    io.copy("/out/*.txt", "/srv/", source=compiler)
    run(commands=["cat /srv/*.txt > /srv/all"])
def compiler():
    base(os="debian12")
    run(commands=["mkdir /out; echo one > /out/1.txt; echo two > /out/2.txt; echo > /out/log"])
""",
    "changes of every kind": """\
    run(commands=[
        "mkdir /opt/x /opt/empty; echo hello > /srv/hello; ln /srv/hello /srv/hard",
        "ln -s hello /srv/link; chmod u+s /usr/bin/find; touch /tmp/x /var/log/x",
        "rm -r /usr/share/doc/base-files; mv /usr/share/doc/tar /usr/share/doc/tar2",
    ])
    run(commands=[
        "cat /srv/hello; rm -r /etc/apt; mkdir /etc/apt; touch /etc/apt/new",
        "useradd --create-home someone; chown someone /srv/hello",
        "touch /etc/came; rm /etc/came; cp -a /etc/debian_version /etc/copy; rm -r /opt/empty",
    ])
""",
}

PACKAGE = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "answer"
version = "1.0"
[tool.setuptools]
py-modules = ["answer"]
"""


@dataclass(frozen=True)
class BuildkitDaemon:
    """A real buildkitd with a separate state directory."""

    process: subprocess.Popen[bytes]
    address: str


@pytest.fixture(scope="module")
def homes() -> Iterator[Path]:
    """A directory on disk, because the daemon and the store need overlayfs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "danlu-tests" / f"buildkit-{os.getpid()}"
    directory.mkdir(parents=True)
    yield directory
    # A daemon that was killed leaves the roots of its containers mounted.
    for mount in reversed(mounts_below(directory)):
        subprocess.run(["umount", "--lazy", mount], check=False)
    remove_tree(directory)


def start_daemon(directory: Path, *options: str) -> BuildkitDaemon:
    """Start buildkitd; return when it answers."""
    directory.mkdir(parents=True, exist_ok=True)
    address = f"unix://{directory}/socket"
    arguments = ["--root", str(directory / "state"), "--addr", address]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            ["buildkitd", "--containerd-worker=false", *arguments, *options],
            stdout=log,
            stderr=log,
        )
    for _ in range(600):
        result = subprocess.run(
            ["buildctl", "--addr", address, "--wait", "debug", "workers"],
            capture_output=True,
            check=False,
        )
        if result.returncode == 0:
            return BuildkitDaemon(process, address)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.1)
    raise AssertionError((directory / "log").read_text())


def stop_daemon(daemon: BuildkitDaemon) -> None:
    daemon.process.terminate()
    daemon.process.wait(timeout=60)


@pytest.fixture(scope="module")
def daemon(homes: Path) -> Iterator[BuildkitDaemon]:
    started = start_daemon(homes / "daemon")
    yield started
    stop_daemon(started)


def write_project(directory: Path, body: str) -> Path:
    directory.mkdir()
    (directory / "data").mkdir()
    (directory / "data" / "file").write_text("text")
    package = directory / "package"
    package.mkdir()
    (package / "answer.py").write_text("value = 42")
    (package / "pyproject.toml").write_text(PACKAGE)
    (directory / "build.envd").write_text(f'def build():\n    base(os="debian12")\n{body}')
    return directory


def describe(metadata: dict[str, Any]) -> list[str]:
    return [f"{layer['diff_id']} {layer['size']}" for layer in metadata["image"]["layers"]]


@pytest.fixture
def buildkit(homes: Path, daemon: BuildkitDaemon, monkeypatch: pytest.MonkeyPatch) -> Danlu:
    """danlu with a store that only BuildKit has filled."""
    monkeypatch.setenv("BUILDKIT_HOST", daemon.address)
    return program_in(homes / "home")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("subject", FILES)
def test_both_builders_give_the_same_image(
    subject: str, tmp_path: Path, danlu: Danlu, buildkit: Danlu
) -> None:
    project = write_project(tmp_path / "project", FILES[subject])
    file = tmp_path / "metadata.json"
    danlu("build", "--metadata-file", str(file), cwd=project)
    embedded = json.loads(file.read_text())
    arguments = ("build", "--frozen", "--builder", "buildkit", "--metadata-file", str(file))
    buildkit(*arguments, cwd=project)
    remote = json.loads(file.read_text())
    assert remote["builder"] == "buildkit"
    assert describe(remote) == describe(embedded)
    assert remote["image"]["config"] == embedded["image"]["config"]
    # The image is in the store, as if it had been built there.
    assert buildkit("run", "--", "cat", "/etc/debian_version", cwd=project).stdout.startswith("12")


def test_secrets_reach_steps_and_no_layer(tmp_path: Path, buildkit: Danlu) -> None:
    project = write_project(
        tmp_path / "project",
        '    run(commands=["wc -c < /run/secrets/token > /srv/length"], secrets=["token"])\n',
    )
    (tmp_path / "token").write_text("correct horse battery")
    secret = f"id=token,src={tmp_path}/token"
    buildkit("build", "--builder", "buildkit", "--secret", secret, cwd=project)
    assert buildkit("run", "--", "cat", "/srv/length", cwd=project).stdout.strip() == "21"
    listing = buildkit("run", "--", "ls", "/run", cwd=project).stdout
    assert "secrets" not in listing


def test_failing_step_names_the_line_and_its_exit_code(tmp_path: Path, buildkit: Danlu) -> None:
    project = write_project(tmp_path / "project", '    run(commands=["echo so; exit 7"])\n')
    result = buildkit("build", "--builder", "buildkit", cwd=project, check=False)
    assert result.returncode == 1
    assert "the command ended with exit code 7" in result.stderr
    assert "build.envd:3" in result.stderr


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A registry whose password is only in Docker's configuration."""
    with debian_registry(htpasswd=HTPASSWD) as host:
        token = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        (tmp_path / "docker").mkdir()
        config = {"auths": {host: {"auth": token}}}
        (tmp_path / "docker" / "config.json").write_text(json.dumps(config))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
        yield host


@pytest.mark.parametrize("kind", ["local", pytest.param("registry", marks=NEEDS_REGISTRY)])
def test_remote_cache_answers_on_another_daemon(
    kind: str,
    tmp_path: Path,
    homes: Path,
    buildkit: Danlu,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    project = write_project(tmp_path / "project", '    run(commands=["date +%N > /srv/now"])\n')
    target, source, other_target = (
        f"type=local,{key}={tmp_path}/{name}"
        for key, name in (("dest", "cache"), ("src", "cache"), ("dest", "again"))
    )
    if kind == "registry":
        target = source = f"type=registry,ref={request.getfixturevalue('registry')}/team/cache:1"
    output = buildkit("build", "--builder", "buildkit", "--cache-to", target, cwd=project).stderr
    first = buildkit("run", "--", "cat", "/srv/now", cwd=project).stdout
    other = start_daemon(homes / f"other-{kind}")
    try:
        monkeypatch.setenv("BUILDKIT_HOST", other.address)
        # --cache-to asks for every step again; without it, our own store would have answered.
        caches = (f"--cache-from={source}", f"--cache-to={other_target}")
        output += buildkit("build", "--builder=buildkit", *caches, cwd=project).stderr
    finally:
        stop_daemon(other)
    assert buildkit("run", "--", "cat", "/srv/now", cwd=project).stdout == first
    assert PASSWORD not in output


@NEEDS_REGISTRY
def test_cache_that_cannot_be_written_fails_after_the_image_is_built(
    tmp_path: Path, buildkit: Danlu, registry: str
) -> None:
    project = write_project(tmp_path / "project", '    run(commands=["echo 1 > /srv/one"])\n')
    config = {"auths": {registry: {"auth": base64.b64encode(b"someone:wrong-word").decode()}}}
    (tmp_path / "docker" / "config.json").write_text(json.dumps(config))
    target = f"type=registry,ref={registry}/team/cache:1"
    result = buildkit(
        "build", "--builder", "buildkit", "--cache-to", target, cwd=project, check=False
    )
    assert result.returncode == 3
    assert "could not export the cache" in result.stderr
    assert "401 Unauthorized" in result.stderr
    assert "wrong-word" not in result.stderr
    assert buildkit("run", "--", "cat", "/srv/one", cwd=project).stdout == "1\n"


def test_layers_that_the_daemon_deleted_are_sent_again(
    tmp_path: Path, buildkit: Danlu, daemon: BuildkitDaemon
) -> None:
    project = write_project(tmp_path / "project", '    run(commands=["echo 1 > /srv/number"])\n')
    file = project / "build.envd"
    buildkit("build", "--builder", "buildkit", cwd=project)
    file.write_text(file.read_text().replace("echo 1", "echo 2"))
    subprocess.run(
        ["buildctl", "--addr", daemon.address, "prune", "--all"], check=True, capture_output=True
    )
    buildkit("build", "--builder", "buildkit", cwd=project)
    assert buildkit("run", "--", "cat", "/srv/number", cwd=project).stdout == "2\n"


def test_build_without_a_new_step_contacts_no_daemon(
    tmp_path: Path, buildkit: Danlu, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = write_project(tmp_path / "project", '    run(commands=["echo 1 > /srv/number"])\n')
    file = project / "build.envd"
    buildkit("build", "--builder", "buildkit", cwd=project)
    monkeypatch.setenv("BUILDKIT_HOST", f"unix://{tmp_path}/none")
    file.write_text(file.read_text() + '    config.entrypoint(["cat", "/srv/number"])\n')
    assert "built" in buildkit("build", "--builder", "buildkit", cwd=project).stderr
    file.write_text(file.read_text().replace("echo 1", "echo 3"))
    result = buildkit("build", "--builder", "buildkit", cwd=project, check=False)
    assert result.returncode == 3
    assert "cannot reach BuildKit" in result.stderr


@pytest.mark.parametrize("end", ["interrupted", "daemon killed"])
def test_build_that_is_cut_off_leaves_nothing(
    end: str, tmp_path: Path, homes: Path, buildkit: Danlu, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = f"sleep 1000.{os.getpid()}"  # found among all processes of the machine
    line = f'    run(commands=["echo began; {sleep}"])\n'
    project = write_project(tmp_path / "project", line)
    buildkit("lock", cwd=project)
    started = start_daemon(homes / end.replace(" ", "-"))
    home = homes / "home"
    environ = {**os.environ, "DANLU_HOME": str(home), "BUILDKIT_HOST": started.address}
    program = subprocess.Popen(
        [str(Path(sys.executable).with_name("danlu")), "build", "--builder", "buildkit"],
        cwd=project,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert program.stdout is not None
    try:
        for line in program.stdout:
            if "| began" in line:
                break
        if end == "interrupted":
            program.send_signal(signal.SIGINT)
        else:
            started.process.kill()
        rest = program.stdout.read()
        assert program.wait(timeout=60) == (130 if end == "interrupted" else 3), rest
        assert os.listdir(home / "store" / "tmp") == []
        if end == "interrupted":
            assert not _find_processes(sleep)
        else:
            assert "cannot reach BuildKit" in rest
            assert "build.envd:3" in rest
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
        for pid in _find_processes(sleep):
            os.kill(pid, signal.SIGKILL)
        stop_daemon(started)


def test_full_disk_of_the_daemon_is_an_outside_error(
    tmp_path: Path, homes: Path, buildkit: Danlu, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = write_project(tmp_path / "project", '    run(commands=["echo 1 > /srv/number"])\n')
    buildkit("build", "--builder", "buildkit", cwd=project)
    file = project / "build.envd"
    file.write_text(file.read_text().replace("echo 1", "echo 5"))
    (homes / "full" / "state").mkdir(parents=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(homes / "full" / "state")],
        check=True,
    )
    started = start_daemon(homes / "full")
    try:
        monkeypatch.setenv("BUILDKIT_HOST", started.address)
        result = buildkit("build", "--builder", "buildkit", cwd=project, check=False)
    finally:
        stop_daemon(started)
    assert result.returncode == 3
    assert "no space left on device" in result.stderr
    assert "buildctl prune" in result.stderr
    assert os.listdir(homes / "home" / "store" / "tmp") == []


def test_build_in_docker_engine_is_refused_with_an_alternative(
    tmp_path: Path, buildkit: Danlu
) -> None:
    project = write_project(tmp_path / "project", "")
    result = buildkit("build", "--builder", "docker", cwd=project, check=False)
    assert result.returncode == 2
    assert "oci-layout" in result.stderr
    assert "docker-container://" in result.stderr


def test_daemon_with_tls_is_reached_with_its_certificates(
    tmp_path: Path, homes: Path, buildkit: Danlu, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = write_project(tmp_path / "project", '    run(commands=["echo 7 > /srv/number"])\n')
    buildkit("lock", cwd=project)
    certificates = homes / "certificates"
    certificates.mkdir()
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    files = ("-keyout", str(certificates / "key.pem"), "-out", str(certificates / "cert.pem"))
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
    shutil.copy(certificates / "cert.pem", certificates / "ca.pem")
    port = free_port()
    options = [f"--tls{name}={certificates}/{file}.pem" for name, file in TLS_OPTIONS.items()]
    started = start_daemon(homes / "tls", f"--addr=tcp://localhost:{port}", *options)
    try:
        monkeypatch.setenv("BUILDKIT_HOST", f"tcp://localhost:{port}")
        arguments = ("build", "--frozen", "--builder", "buildkit")
        assert buildkit(*arguments, cwd=project, check=False).returncode == 3
        monkeypatch.setenv("DANLU_BUILDKIT_TLS_DIR", str(certificates))
        buildkit(*arguments, cwd=project)
    finally:
        stop_daemon(started)


def read_tree(archive: Path) -> dict[str, tuple[object, ...]]:
    """Return kind, mode, owner and content of every path in a tar; hard links are files."""
    results: dict[str, tuple[object, ...]] = {}
    with tarfile.open(archive) as source:
        for member in source:
            name = member.name.removeprefix("./").rstrip("/")
            content = source.extractfile(member) if member.isreg() or member.islnk() else None
            digest = hashlib.sha256(content.read()).hexdigest() if content else member.linkname
            kind = tarfile.REGTYPE if member.islnk() else member.type
            results[name] = (kind, oct(member.mode), member.uid, member.gid, digest)
    return results


def test_dockerfile_builds_the_same_files(
    tmp_path: Path, danlu: Danlu, daemon: BuildkitDaemon
) -> None:
    body = FILES["changes of every kind"] + '    runtime.environ(env={"A": "a $b \\"c\\""})\n'
    project = write_project(tmp_path / "project", body)
    context, expected, built = (tmp_path / name for name in ("context", "root.tar", "built.tar"))
    danlu(
        "build",
        *("-o", f"type=dockerfile,dest={context}"),
        *("-o", f"type=tar,dest={expected}"),
        cwd=project,
    )
    subprocess.run(
        [
            *("buildctl", "--addr", daemon.address, "build", "--frontend", "dockerfile.v0"),
            *("--local", f"context={context}", "--local", f"dockerfile={context}"),
            *("--output", f"type=tar,dest={built}", "--progress", "plain"),
        ],
        check=True,
        capture_output=True,
    )
    desired, result = read_tree(expected), read_tree(built)
    # BuildKit leaves the mount points of RUN in the image.
    extra = {
        name for name in result.keys() - desired.keys() if not name.startswith(("dev", "proc"))
    }
    assert extra <= {"sys"}
    assert {name: result.get(name) for name in desired} == desired


def _find_processes(command: str) -> list[int]:
    results = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            arguments = (entry / "cmdline").read_bytes().replace(b"\0", b" ").strip()
            if arguments == command.encode():
                results.append(int(entry.name))
    return results
