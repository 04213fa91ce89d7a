"""Every build function: the installed programs run."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import os
import socket
import subprocess
import tarfile
import threading
import time
import zipfile
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Project
from tests.e2e.secrets import find_files_with
from tests.fakes.openvsx import FakeExtensionRegistry, make_vsix, serve_registry

pytestmark = pytest.mark.real


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    """The socket of an ssh agent without keys."""
    socket = tmp_path / "agent"
    command = ["ssh-agent", "-D", "-a", str(socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        yield socket
        running.kill()


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    command = ["git", *identity, "-C", str(directory), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def repository(directory: Path, files: dict[str, str]) -> str:
    directory.mkdir()
    git(directory, "init", "-q", "-b", "main")
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    git(directory, "add", ".")
    git(directory, "commit", "-q", "-m", "first")
    return git(directory, "rev-parse", "HEAD")


PACKAGE = {
    "pyproject.toml": (
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "alchemy"\nversion = "1.5"\n'
    ),
    "alchemy.py": 'WORD = "elixir"\n',
}


def make_wheel(directory: Path) -> Path:
    path = directory / "alchemy-1.5-py3-none-any.whl"
    info = "alchemy-1.5.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("alchemy.py", PACKAGE["alchemy.py"])
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: alchemy\nVersion: 1.5\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(
            f"{info}/RECORD", f"alchemy.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
        )
    return path


@pytest.mark.slow
def test_base_os_alone_runs_a_command(project: Project) -> None:
    project.write()
    assert "bookworm" in project.run("cat", "/etc/os-release")


def test_apt_packages(project: Project) -> None:
    project.write('install.apt_packages(["git", "file"])')
    assert project.run("git", "--version").startswith("git version 2.")
    assert "ELF" in project.run("file", "-L", "/usr/bin/git")


def test_python_and_pip(project: Project) -> None:
    project.write('install.python(version="3.11")')
    assert project.run("python", "--version").startswith("Python 3.11.")
    assert "/opt/venv" in project.run("pip", "--version")


def test_uv(project: Project) -> None:
    project.write('install.uv(python_version="3.11")')
    assert project.run("uv", "--version").startswith("uv ")


@pytest.mark.slow
def test_rust_compiles_a_program(project: Project) -> None:
    (project.directory / "main.rs").write_text('fn main() { println!("{}", 6 * 7); }\n')
    project.write("install.rust()", 'run(["rustc /workspace/main.rs -o /answer"], mount_host=True)')
    assert project.run("/answer") == "42"
    assert project.run("cargo", "--version").startswith("cargo ")


@pytest.mark.slow
def test_cudnn_is_found_by_the_loader_and_comes_with_the_cublas_of_that_cuda(
    project: Project,
) -> None:
    project.write('install.cuda("12.4.1", cudnn="9.1.0", flavor="base")')
    program = "import ctypes; print(ctypes.CDLL('libcudnn.so.9').cudnnGetVersion())"
    assert project.run("/usr/bin/python3", "-c", program) == "90100"
    cublas = "import ctypes; print(bool(ctypes.CDLL('libcublas.so.12').cublasGetVersion_v2))"
    assert project.run("/usr/bin/python3", "-c", cublas) == "True"
    lock = (project.directory / "danlu.lock").read_text()
    assert '{ name = "nvidia-cublas-cu12", version = "12.4.5.8"' in lock
    assert "nvrtc" not in lock


def test_cuda_is_found_by_the_loader_without_variables(project: Project) -> None:
    project.write('install.cuda("12.4.1", cudnn="", flavor="base", components=["nvrtc"])')
    cached = project.run("ldconfig", "-p")
    assert "libcudart.so.12" in cached
    assert "libnvrtc.so.12" in cached
    program = (
        "import ctypes; version = ctypes.c_int();"
        " print(ctypes.CDLL('libcudart.so.12').cudaRuntimeGetVersion(ctypes.byref(version)),"
        " version.value)"
    )
    run = ("env", "-u", "LD_LIBRARY_PATH", "python3", "-c", program)
    assert project.run(*run) == "0 12040"
    assert project.run("/usr/bin/python3", "-c", program) == "0 12040"


@pytest.fixture
def extensions() -> Iterator[FakeExtensionRegistry]:
    """A registry with an extension for Linux, which depends on another one."""
    with serve_registry() as registry:
        main = make_vsix(
            "ms-python.python",
            "2024.8.1",
            extensionDependencies=["ms-python.debugpy"],
            files={"extension/bin/tool": "#!/bin/sh\n"},
        )
        registry.publish("ms-python.python", "2024.8.1", main)
        debugger = make_vsix("ms-python.debugpy", "2024.6.0")
        registry.publish("ms-python.debugpy", "2024.6.0", debugger, platform="linux-x64")
        yield registry


@pytest.mark.slow
def test_vscode_extensions_are_where_editors_look(
    project: Project, extensions: FakeExtensionRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DANLU_MIRROR_OPENVSX", extensions.url)
    (project.directory / "mine.vsix").write_bytes(make_vsix("me.mine", "0.1.0"))
    project.write(
        'install.vscode_extensions(["ms-python.python", "./mine.vsix"])',
        base='    base(os="debian12", dev=True)\n',
    )
    first = project.build()["image"]["config"]
    lock = (project.directory / "danlu.lock").read_text()
    assert extensions.url not in lock
    assert 'name = "ms-python.debugpy"' in lock
    root = "/home/envd/.vscode-server/extensions"
    listing = json.loads(project.run("cat", f"{root}/extensions.json"))
    assert {item["relativeLocation"] for item in listing} == {
        "me.mine-0.1.0",
        "ms-python.debugpy-2024.6.0-linux-x64",
        "ms-python.python-2024.8.1",
    }
    for item in listing:
        location = item["location"]["path"]
        assert location == f"{root}/{item['relativeLocation']}"
        manifest = json.loads(project.run("cat", f"{location}/package.json"))
        assert f"{manifest['publisher']}.{manifest['name']}" == item["identifier"]["id"]
        assert project.run("stat", "-c", "%U", location, f"{location}/main.js") == "envd\nenvd"
        assert "Identity" in project.run("cat", f"{location}/.vsixmanifest")
    link = "/home/envd/.local/share/code-server/extensions"
    assert project.run("readlink", "-f", link) == root
    assert project.run("stat", "-c", "%U", root, "/home") == "envd\nroot"
    # Locked and downloaded: no registry is asked again, and the image is the same.
    extensions.requests.clear()
    assert project.build("--no-cache", "--offline")["image"]["config"] == first
    assert not extensions.requests


def test_python_packages_by_name(project: Project) -> None:
    project.write('install.python_packages(name=["tqdm", "six==1.16.0"])')
    assert project.run("python", "-c", "import six, tqdm; print(six.__version__)") == "1.16.0"


def test_scripts_of_packages_run(project: Project) -> None:
    project.write('install.python_packages(name=["tqdm"])')
    assert project.run("tqdm", "--version")


def test_python_packages_from_a_requirements_file(project: Project) -> None:
    (project.directory / "more.txt").write_text("six==1.16.0  # old\n")
    (project.directory / "requirements.txt").write_text("-r more.txt\ntqdm>4; python_version>'3'\n")
    project.write('install.python_packages(requirements="requirements.txt")')
    assert project.run("python", "-c", "import six, tqdm; print(six.__version__)") == "1.16.0"


def test_python_packages_from_a_local_wheel(project: Project) -> None:
    wheel = make_wheel(project.directory)
    project.write(f'install.python_packages(local_wheels=["{wheel.name}"])')
    assert project.run("python", "-c", "import alchemy; print(alchemy.WORD)") == "elixir"


def test_python_packages_from_a_url(project: Project, http_directory: tuple[str, Path]) -> None:
    address, directory = http_directory
    wheel = make_wheel(directory)
    project.write(f'install.python_packages(name=["alchemy @ {address}/{wheel.name}"])')
    assert project.run("python", "-c", "import alchemy; print(alchemy.WORD)") == "elixir"


@pytest.mark.slow
def test_python_packages_from_a_repository_are_built_in_the_sandbox(
    project: Project, tmp_path: Path
) -> None:
    marker = tmp_path / "ran-on-the-host"
    setup = (
        f"try:\n    open({str(marker)!r}, 'w').close()\nexcept OSError:\n    pass\n"
        "from setuptools import setup\nsetup()\n"
    )
    commit = repository(project.directory / "repository", {**PACKAGE, "setup.py": setup})
    address = f"git+file://{project.directory}/repository"
    project.write(f'install.python_packages(name=["alchemy @ {address}"])')
    assert project.run("python", "-c", "import alchemy; print(alchemy.WORD)") == "elixir"
    assert commit in (project.directory / "danlu.lock").read_text()
    assert not marker.exists()


def machine_sources() -> str:
    """This machine's own Debian sources, a line each (sources.list(5))."""
    lines = []
    for file in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        for stanza in file.read_text().split("\n\n"):
            fields = dict(
                line.split(": ", 1) for line in stanza.splitlines() if line and line[0] not in "# "
            )
            if "debian" not in fields.get("URIs", ""):
                continue
            for suite in fields["Suites"].split():
                if suite.startswith("bookworm"):
                    key = fields["Signed-By"]
                    lines.append(
                        f"deb [signed-by={key}] {fields['URIs']} {suite} {fields['Components']}"
                    )
    return "\n".join(lines)


def test_apt_source(project: Project) -> None:
    text = machine_sources()
    if not text:
        pytest.skip("this machine's apt is not configured for bookworm by *.sources files")
    project.write(f"config.apt_source({text!r})", 'install.apt_packages(["file"])')
    assert project.run("cat", "/etc/apt/sources.list") == text
    assert project.run("file", "--version").startswith("file-")


def test_pip_index_is_written_without_credentials(project: Project) -> None:
    project.write('config.pip_index(url="https://u:secret@example.org/simple", trust=True)')
    text = project.run("cat", "/etc/pip.conf")
    assert "https://example.org/simple" in text
    assert "secret" not in text


def test_owner_is_the_user_of_the_image(project: Project) -> None:
    project.write("config.owner(uid=1234, gid=2345)")
    report = project.build("-o", f"type=oci,dest={project.directory}/out")
    config = oci_config(project.directory / "out", report["image"]["config"])
    assert config["config"]["User"] == "1234:2345"


def test_entrypoint(project: Project) -> None:
    project.write('config.entrypoint(args=["echo", "hi"])')
    report = project.build("-o", f"type=oci,dest={project.directory}/out")
    config = oci_config(project.directory / "out", report["image"]["config"])
    assert config["config"]["Entrypoint"] == ["echo", "hi"]


def test_an_image_runs_as_a_sagemaker_job(project: Project, tmp_path: Path) -> None:
    program = "import os, sys; print(os.environ['SM_HP_EPOCHS'], os.environ['RANK'], sys.argv[1:])"
    command = ["python", "-c", program]
    project.write('install.python(version="3.11")', f"config.sagemaker({command!r})")
    config = tmp_path / "ml" / "input" / "config"
    config.mkdir(parents=True)
    (config / "hyperparameters.json").write_text('{"epochs": "3"}')
    (config / "inputdataconfig.json").write_text("{}")
    hosts = '{"current_host": "localhost", "hosts": ["localhost"]}'
    (config / "resourceconfig.json").write_text(hosts)
    entrypoint = ("python3", "-I", "/opt/danlu/sagemaker.py")
    report = project.build("-o", f"type=oci,dest={project.directory}/out")
    built = oci_config(project.directory / "out", report["image"]["config"])["config"]
    assert (built["Entrypoint"], built["Cmd"]) == ([*entrypoint], command)
    volume = f"{tmp_path}/ml:/opt/ml"
    output = project("run", "-v", volume, "--", *entrypoint, "train").stdout
    assert output.strip() == "3 0 ['--epochs', '3']"
    assert project.run(*entrypoint, "echo", "as it is") == "as it is"


def image_members(project: Project) -> list[str]:
    """Return the names in all layers of steps, as read by another tool."""
    archive = project.directory.parent / "image.tar"
    project("build", "-o", f"type=docker,dest={archive}")
    with tarfile.open(archive) as image:
        manifest = json.load(image.extractfile("manifest.json"))  # type: ignore[arg-type]
        names = []
        for layer in manifest[0]["Layers"][1:]:
            with tarfile.open(fileobj=image.extractfile(layer)) as tar:
                names.extend(tar.getnames())
    return names


def oci_config(layout: Path, digest: str) -> dict[str, dict[str, object]]:
    blob = layout / "blobs" / "sha256" / digest.removeprefix("sha256:")
    value: dict[str, dict[str, object]] = json.loads(blob.read_bytes())
    return value


@pytest.mark.slow
def test_jupyter(project: Project) -> None:
    project.write('install.python(version="3.11")', 'config.jupyter(token="s3cret")')
    assert "jupyter core" in project.run("jupyter", "--version").lower().replace("_", " ")
    assert "s3cret" not in (project.directory / "danlu.lock").read_text()


@pytest.mark.parametrize("name", ["zsh", pytest.param("fish", marks=pytest.mark.slow)])
def test_shell(project: Project, name: str) -> None:
    project.write(f'shell("{name}")')
    assert project.run(name, "-c", "echo $SHELL") == f"/usr/bin/{name}"


def test_zsh_starts_with_a_prompt_and_no_questions(project: Project) -> None:
    project.write('shell("zsh")')
    script = 'print -P "$PS1"; zsh-newuser-install; print ready'
    assert project.run("zsh", "-i", "-c", script) == "root@danlu:/workspace# \nready"


def test_git_config(project: Project) -> None:
    project.write('install.apt_packages(["git"])', 'git_config(name="Ada \\"L\\"", email="a@b.c")')
    assert project.run("git", "config", "user.name") == 'Ada "L"'
    assert project.run("git", "config", "user.email") == "a@b.c"


def test_run_steps_are_in_order_and_keep_quotes(project: Project) -> None:
    project.write(
        "run([\"echo 'a b' > /f\"])", 'run(["echo \\"$(cat /f)\\" c >> /f", "false || true"])'
    )
    assert project.run("cat", "/f") == "a b\na b c"


def test_run_can_install_with_pip_behind_the_machines_mirror(project: Project) -> None:
    project.write('install.python(version="3.11")', 'run(["pip install six==1.16.0"])')
    assert project.run("python", "-c", "import six; print(six.__version__)") == "1.16.0"
    names = image_members(project)
    assert not [
        name for name in names if name.endswith(("pip.conf", "uv.toml", ".crt", "resolv.conf"))
    ]


def test_run_sees_the_project_if_it_mounts_it(project: Project) -> None:
    (project.directory / "word").write_text("one")
    project.write('run(["cp word /kept"], mount_host=True)')
    assert project.run("cat", "/kept") == "one"
    (project.directory / "word").write_text("two")
    assert project.run("cat", "/kept") == "two"


def test_a_secret_is_readable_in_its_step_and_nowhere_else(
    project: Project, tmp_path: Path
) -> None:
    secret = tmp_path / "token"
    secret.write_text("hunter2")
    project.write('run(["wc -c < /run/secrets/token > /length"], secrets=["token"])')
    project("build", "--secret", f"id=token,src={secret}")
    assert project.run("cat", "/length") == "7"
    assert project.run("sh", "-c", "ls -A /run/secrets 2>/dev/null | wc -l") == "0"
    missing = Project(project.directory, project.danlu)
    missing.write('run(["cat /run/secrets/other"], secrets=["other"])')
    failed = missing("build", check=False)
    assert failed.returncode == 2
    assert "--secret id=other" in failed.stderr


def test_copy_from_the_project(project: Project) -> None:
    (project.directory / "src").mkdir()
    (project.directory / "src/a.txt").write_text("a")
    (project.directory / "tool.sh").write_text("#!/bin/sh\necho tool\n")
    (project.directory / "tool.sh").chmod(0o755)
    project.write('io.copy("src", "/app")', 'io.copy("tool.sh", "/usr/local/bin/tool")')
    assert project.run("cat", "/app/a.txt") == "a"
    assert project.run("tool") == "tool"
    (project.directory / "src/a.txt").write_text("b")
    assert project.run("cat", "/app/a.txt") == "b"


def test_a_copy_reports_omitted_and_changed_files(project: Project) -> None:
    source = project.directory / "src"
    source.mkdir()
    (source / "key").write_text("k")
    (source / "key").chmod(0o600)
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(source / "sock"))
    odd = os.fsencode(source) + b"/caf\xe9"
    os.close(os.open(odd, os.O_CREAT | os.O_WRONLY, 0o644))
    project.write('io.copy(".", "/app")')
    built = project("build")
    assert "cannot hold them: src/sock" in built.stderr
    assert "src/key (600)" in built.stderr
    listing = project.run("ls", "-b", "/app/src").split()
    assert listing == ["caf\\351", "key", "pipe"]
    assert project.run("stat", "-c", "%F", "/app/src/pipe") == "fifo"
    assert "up to date" in project("build").stderr, "the lock was not copied"


def test_copying_below_tmp_and_root_leaves_their_modes(project: Project) -> None:
    (project.directory / "a").write_text("a")
    project.write('io.copy("a", "/tmp/x/a")', 'io.copy("a", "/root/a")')
    assert project.run("stat", "-c", "%a", "/root") == "700"


def test_http(project: Project, http_directory: tuple[str, Path]) -> None:
    address, directory = http_directory
    (directory / "data.csv").write_text("1,2\n")
    checksum = hashlib.sha256(b"1,2\n").hexdigest()
    project.write(
        f'io.http(url="{address}/data.csv", checksum="sha256:{checksum}")',
        f'io.http(url="{address}/data.csv", filename="other.csv")',
        'run(["cat /home/envd/extra_source/data.csv > /copied"])',
    )
    assert project.run("cat", "/copied", "/home/envd/extra_source/other.csv") == "1,2\n1,2"


def test_http_from_a_mirror_that_no_lock_names(
    project: Project, http_directory: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, directory = http_directory
    (directory / "data.csv").write_text("1,2\n")
    monkeypatch.setenv("DANLU_MIRROR_DATA_INVALID", address)
    project.write('io.http(url="https://data.invalid/data.csv")')
    assert project.run("cat", "/home/envd/extra_source/data.csv") == "1,2"
    lock = (project.directory / "danlu.lock").read_text()
    assert "https://data.invalid/data.csv" in lock
    assert address not in lock


def test_http_with_a_wrong_checksum(project: Project, http_directory: tuple[str, Path]) -> None:
    address, directory = http_directory
    (directory / "data.csv").write_text("1,2\n")
    project.write(f'io.http(url="{address}/data.csv", checksum="sha256:{"0" * 64}")')
    failed = project("build", check=False)
    assert failed.returncode == 3
    assert "build.envd:3" in failed.stderr
    assert not (project.directory / "danlu.lock").exists()


#: Asks the agent which keys it has, in the words of its protocol (draft-miller-ssh-agent).
ASK = (
    "perl -MIO::Socket::UNIX -e "
    "'$s = IO::Socket::UNIX->new($ENV{SSH_AUTH_SOCK}) or die $!; "
    'syswrite $s, pack("NC", 1, 11); sysread $s, $got, 5; print unpack("x4C", $got)\' > /answer'
)


@pytest.mark.needs("ssh-agent")
def test_an_ssh_agent_needs_consent_and_cached_steps_need_no_agent(
    project: Project, agent: Path
) -> None:
    project.write(f"run([{json.dumps(ASK)}], ssh=True)")
    for command in (("build",), ("run", "--", "true")):
        refused = project(*command, check=False)
        assert refused.returncode == (2 if command == ("build",) else 125)
        assert "build.envd:3" in refused.stderr
        assert "`danlu build --ssh default`" in refused.stderr
    first = project.build("--ssh", f"default={agent}")
    assert project.build()["image"]["config"] == first["image"]["config"]
    assert project.run("cat", "/answer") == "12"


def test_environ(project: Project) -> None:
    project.write(
        'runtime.environ(env={"A": "1", "B": "x y"}, extra_path=["/opt/own/bin"])',
        'run(["echo $A > /a"])',
    )
    assert project.run("sh", "-c", "echo $A $B; cat /a; echo $PATH").startswith(
        "1 x y\n1\n/opt/own"
    )


def test_include_through_git_with_a_ref(project: Project, tmp_path: Path) -> None:
    first = repository(
        tmp_path / "lib",
        {"build.envd": 'def tools():\n    install.apt_packages(["file"])\n'},
    )
    config = tmp_path / "gitconfig"
    config.write_text(f'[url "file://{tmp_path}/"]\n\tinsteadOf = https://example.org/team/\n')
    project.write(
        "lib.tools()", head='lib = include("https://example.org/team/lib", ref="main")\n\n'
    )
    os.environ["GIT_CONFIG_GLOBAL"] = str(config)
    try:
        assert project.run("file", "--version").startswith("file-")
        (tmp_path / "lib/build.envd").write_text("def tools():\n    fail('moved')\n")
        git(tmp_path / "lib", "commit", "-q", "-a", "-m", "second")
        project("build", "--frozen")
    finally:
        del os.environ["GIT_CONFIG_GLOBAL"]
    assert first in (project.directory / "danlu.lock").read_text()


@pytest.mark.slow
def test_dev_brings_its_tools(project: Project) -> None:
    project.write(base='    base(os="debian12", dev=True)\n')
    for tool in ("git", "curl", "tini", "make", "less"):
        assert project.run("sh", "-c", f"command -v {tool}")
    assert project.run("test", "-x", "/usr/sbin/sshd") == ""


def test_load_of_a_local_file_and_another_function(project: Project) -> None:
    (project.directory / "parts.envd").write_text(
        'def serve():\n    base(os="debian12")\n    run(["echo serve > /what"])\n'
    )
    (project.directory / "build.envd").write_text(
        'load("parts.envd", "serve")\n\ndef build():\n    serve()\n\n'
        'def other():\n    base(os="debian12")\n    run(["echo other > /what"])\n'
    )
    assert project.run("cat", "/what") == "serve"
    other = project("run", "-f", "build.envd:other", "--", "cat", "/what")
    assert other.stdout.strip() == "other"


def test_the_same_in_python(project: Project) -> None:
    (project.directory / "build.py").write_text(
        "from danlu import base, run\n\n\ndef build() -> None:\n"
        '    base(os="debian12")\n    run(["echo python > /what"])\n'
    )
    assert project.run("cat", "/what") == "python"


@pytest.mark.parametrize("spelling", [pytest.param("name", marks=pytest.mark.slow), "file"])
def test_the_project_itself_is_a_package(project: Project, spelling: str) -> None:
    directory = project.directory
    (directory / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "mine"\nversion = "1.0"\n[tool.setuptools]\npackages = ["mine"]\n'
    )
    (directory / "mine").mkdir()
    (directory / "mine/__init__.py").write_text('print("first")\n')
    if spelling == "name":
        project.write("install.python()", 'install.python_packages(["."])')
    else:
        (directory / "requirements.txt").write_text("-e .\n")
        project.write(
            "install.python()", 'install.python_packages(requirements="requirements.txt")'
        )
    assert project.run("python", "-P", "-c", "import mine") == "first"
    for result in ("build/lib/mine", "dist", "mine.egg-info", "mine/__pycache__", ".git"):
        (directory / result).mkdir(parents=True, exist_ok=True)
        (directory / result / "file").write_text("made by a tool")
    assert "up to date" in project("build").stderr
    (directory / "mine/__init__.py").write_text('print("second")\n')
    assert project.run("python", "-P", "-c", "import mine") == "second"
    assert "up to date" in project("build", "--frozen").stderr


class _PasswordHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files to clients that send the password."""

    def do_GET(self) -> None:
        if self.headers.get("Authorization") == "Basic " + b64encode(b"me:s3cr3t-word").decode():
            super().do_GET()
        else:
            self.send_error(401)

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


@pytest.mark.slow
def test_a_password_in_an_address_is_used_and_kept_nowhere(
    project: Project, tmp_path: Path, real_home: Path
) -> None:
    started = time.time()
    served = tmp_path / "served"
    served.mkdir()
    (served / "data.txt").write_text("data")
    wheel = served / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "print('tiny')\n")
        archive.writestr(
            "tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
        )
        archive.writestr(
            "tiny-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\n")
    handler = functools.partial(_PasswordHandler, directory=str(served))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://me:s3cr3t-word@127.0.0.1:{server.server_port}"
            lines = (
                "install.python()",
                f'install.python_packages(["tiny @ {address}/{wheel.name}"])',
                f'io.http("{address}/data.txt")',
                f'run(["echo {address} > /dev/null"])',
            )
            project.write(*lines)
            outputs = [project("plan"), project("build"), project("build", "--no-cache")]
            outputs.append(project("plan", "--why", "--format", "json"))
            assert project.run("python", "-c", "import tiny") == "tiny"
            assert project.run("cat", "/home/envd/extra_source/data.txt") == "data"
            project.write(*lines, f'install.python_packages(["six", "-i", "{address}"])')
            outputs.append(project("build"))
            assert project.run("python", "-c", "import six, tiny") == "tiny"
            project.write(*lines, f'install.python_packages(["nope", "-i {address}"])')
            outputs.append(project("build", check=False))
            assert outputs[-1].returncode == 2
            project.write("install.python()", f'install.python_packages(["a==1 ; {address}"])')
            outputs.append(project("build", check=False))
            assert outputs[-1].returncode == 2
            outputs.append(project("build", "--progress", "json", check=False))
        finally:
            server.shutdown()
            thread.join()
    for output in outputs:
        assert "s3cr3t-word" not in output.stdout + output.stderr
    assert "s3cr3t-word" not in (project.directory / "danlu.lock").read_text()
    assert find_files_with("s3cr3t-word", started, real_home) == []
