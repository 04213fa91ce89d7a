"""Every function of the table in every spelling gives the same declaration in both languages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from danlu.environment.conda import CondaChannels, CondaEnvironment, CondaPackages
from danlu.environment.runtime_settings import ExposedPort, RuntimeMount
from danlu.environment.types import (
    AptSource,
    BaseSystem,
    Environment,
    ImageOwner,
    IncludeRef,
    PipIndex,
    PythonInterpreter,
    PythonPackages,
    SystemPackages,
    UvTool,
)
from danlu.lang.functions import FUNCTIONS
from danlu.lang.functions.base import GitConfig, LoginShell
from danlu.lang.functions.codex import CodexAgent
from danlu.lang.functions.conda import PixiConfig
from danlu.lang.functions.config import (
    GpuCount,
    ImageEntrypoint,
    ImageRepository,
    JupyterServer,
    SharedMemory,
)
from danlu.lang.functions.cuda import CudaImage, CudaToolkit
from danlu.lang.functions.data import DataDirectory
from danlu.lang.functions.go import GoToolchain
from danlu.lang.functions.julia import JuliaPackages, JuliaPackageServer, JuliaToolchain
from danlu.lang.functions.nodejs import NodeToolchain
from danlu.lang.functions.r import CranMirror, RLanguage, RPackages
from danlu.lang.functions.rstudio import RStudioServer
from danlu.lang.functions.runtime import (
    BackgroundPrograms,
    EnvironmentVariables,
    HostMount,
    InitCommands,
    NamedCommands,
    PortExposure,
)
from danlu.lang.functions.rust import RustToolchain
from danlu.lang.functions.sagemaker import SageMakerEntrypoint
from danlu.lang.functions.steps import CopyStep, HttpStep, RunStep, StepSecret
from danlu.lang.functions.vscode import VscodeExtensions
from tests.lang.support import COMMIT, body, envd, python_body

BARE = Environment("build", "build.envd", BaseSystem(image="ubuntu:22.04"))
SUM = "sha256:" + "0a" * 32


CASES: list[tuple[str, dict[str, Any]]] = [
    ("base()", {}),
    ("base(dev=True)", {"base": BaseSystem(image="ubuntu:22.04", dev=True)}),
    ("base('debian:12', True)", {"base": BaseSystem(image="debian:12", dev=True)}),
    ("base(image='python:3.11-slim')", {"base": BaseSystem(image="python:3.11-slim")}),
    ("base(os='debian12')", {"base": BaseSystem(os="debian12")}),
    ("base(os='debian12', dev=True)", {"base": BaseSystem(os="debian12", dev=True)}),
    ("base('debian12')", {"base": BaseSystem(os="debian12")}),
    (
        "base(os='ubuntu20.04', language='python3.8')",
        {
            "base": BaseSystem(os="ubuntu20.04", dev=True, language="python3.8"),
            "declarations": (PythonInterpreter("3.8"),),
        },
    ),
    (
        "base('ubuntu20.04', 'python3')",
        {
            "base": BaseSystem(os="ubuntu20.04", dev=True, language="python3"),
            "declarations": (PythonInterpreter(""),),
        },
    ),
    (
        "base(language='python3.9', dev=False)",
        {
            "base": BaseSystem(os="ubuntu22.04", language="python3.9"),
            "declarations": (PythonInterpreter("3.9"),),
        },
    ),
    (
        "base(os='ubuntu22.04', language='r')",
        {
            "base": BaseSystem(os="ubuntu22.04", dev=True, language="r"),
            "declarations": (RLanguage(),),
        },
    ),
    (
        "base(language='julia')",
        {
            "base": BaseSystem(os="ubuntu22.04", dev=True, language="julia"),
            "declarations": (JuliaToolchain(),),
        },
    ),
    (
        "base(language='python3'); install.python('3.11')",
        {
            "base": BaseSystem(os="ubuntu22.04", dev=True, language="python3"),
            "declarations": (PythonInterpreter("3.11"),),
        },
    ),
    ("shell()", {"declarations": (LoginShell("bash"),)}),
    ("shell('zsh')", {"declarations": (LoginShell("zsh"),)}),
    ("shell(name='fish')", {"declarations": (LoginShell("fish"),)}),
    ("run(['make', 'make install'])", {"steps": (RunStep(("make", "make install")),)}),
    ("run(commands=('a',), mount_host=True)", {"steps": (RunStep(("a",), mount_host=True),)}),
    (
        "run(['a'], secrets=['token', {'id': 'key', 'target': '/etc/key'}], ssh=True)",
        {
            "steps": (
                RunStep(
                    ("a",),
                    secrets=(
                        StepSecret("token", "/run/secrets/token"),
                        StepSecret("key", "/etc/key"),
                    ),
                    ssh=True,
                ),
            )
        },
    ),
    ("run([])", {}),
    ("run(['', ' \\n'])", {}),
    ("run(['', 'make'])", {"steps": (RunStep(("", "make")),)}),
    (
        "git_config(name='Ada', email='ada@example.org', editor='vim')",
        {"declarations": (GitConfig("Ada", "ada@example.org", "vim"),)},
    ),
    ("git_config(email=None)", {"declarations": (GitConfig(),)}),
    ("install.python()", {"declarations": (PythonInterpreter("3.11"),)}),
    ("install.python('3.12.1')", {"declarations": (PythonInterpreter("3.12.1"),)}),
    ("install.python(version='')", {"declarations": (PythonInterpreter(""),)}),
    ("install.uv()", {"declarations": (UvTool("3.11"),)}),
    ("install.uv(python_version='3.12')", {"declarations": (UvTool("3.12"),)}),
    (
        "install.apt_packages(['git', 'vim=2:9*']); install.apt_packages(name=('curl',))",
        {"declarations": (SystemPackages(("git", "vim=2:9*")), SystemPackages(("curl",)))},
    ),
    ("install.apt_packages()", {}),
    (
        "install.python_packages(['numpy', 'torch ; python_version > \"3\"'])",
        {"declarations": (PythonPackages(("numpy", 'torch ; python_version > "3"')),)},
    ),
    (
        "install.python_packages(['a'], constraints=['b<2'])",
        {"declarations": (PythonPackages(("a",), constraints=("b<2",)),)},
    ),
    (
        "install.python_packages(requirements='r.txt', local_wheels=['a.whl'])",
        {"declarations": (PythonPackages((), "r.txt", ("a.whl",)),)},
    ),
    (
        "install.python_packages(['torch --extra-index-url https://x.org', '-f https://y.org'])",
        {
            "declarations": (
                PythonPackages(("torch", "--extra-index-url https://x.org", "-f https://y.org")),
            )
        },
    ),
    (
        "install.python_packages(['a', '-i', 'https://x.org', '--no-binary=b', '--pre c'])",
        {
            "declarations": (
                PythonPackages(("a", "-i https://x.org", "--no-binary b", "--pre", "c")),
            )
        },
    ),
    (
        "install.python_packages(pyproject='pyproject.toml', groups=['dev'], extras=('gpu',))",
        {
            "declarations": (
                PythonPackages(pyproject="pyproject.toml", groups=("dev",), extras=("gpu",)),
            )
        },
    ),
    ("install.python_packages(['-e ./lib'])", {"declarations": (PythonPackages(("-e ./lib",)),)}),
    ("install.conda()", {"declarations": (CondaEnvironment(),)}),
    ("install.conda(use_mamba=True)", {"declarations": (CondaEnvironment(),)}),
    (
        "install.conda_packages(['gcc'], channel=['conda-forge'])",
        {"declarations": (CondaPackages(("gcc",), ("conda-forge",)),)},
    ),
    (
        "install.conda_packages(env_file='env.yaml')",
        {
            "declarations": (
                CondaPackages(env_file="env.yaml"),
                PythonPackages(requirements="env.yaml"),
            )
        },
    ),
    (
        "install.pixi(use_pixi_mirror=True, pypi_index='https://x.org')",
        {
            "declarations": (
                CondaPackages(("pixi",), source="install.pixi"),
                PixiConfig(use_mirror=True, pypi_index="https://x.org"),
            )
        },
    ),
    ("install.r_lang()", {"declarations": (RLanguage(),)}),
    ("install.r_packages(['remotes'])", {"declarations": (RPackages(("remotes",)),)}),
    ("install.julia()", {"declarations": (JuliaToolchain(),)}),
    (
        "install.julia_packages(['Flux', 'JSON@0.21'])",
        {"declarations": (JuliaPackages(("Flux", "JSON@0.21")),)},
    ),
    ("install.rust()", {"declarations": (RustToolchain(),)}),
    ("install.rust(version='1.72.0')", {"declarations": (RustToolchain("1.72.0"),)}),
    ("install.go(version=None)", {"declarations": (GoToolchain(),)}),
    ("install.nodejs('25.1.0')", {"declarations": (NodeToolchain("25.1.0"),)}),
    ("install.codex()", {"declarations": (CodexAgent(),)}),
    ("install.codex('rust-v0.98.0')", {"declarations": (CodexAgent("0.98.0"),)}),
    (
        "install.cuda(version='12.4.1', cudnn='9')",
        {"declarations": (CudaToolkit("12.4.1", "9"),)},
    ),
    ("install.cuda('12.4')", {"declarations": (CudaToolkit("12.4"),)}),
    (
        "install.cuda('13.0', cudnn='', flavor='devel', components=['sanitizer'])",
        {"declarations": (CudaToolkit("13.0", "", "devel", ("sanitizer",)),)},
    ),
    (
        "base(os='ubuntu20.04'); install.cuda(version='11.2.2', cudnn='8')",
        {
            "base": BaseSystem(image="nvidia/cuda:11.2.2-cudnn8-runtime-ubuntu20.04"),
            "declarations": (CudaImage("11.2.2", "8"),),
        },
    ),
    (
        "base(os='ubuntu22.04', dev=False); "
        "install.cuda('12.4.1', flavor='devel', provider='image')",
        {
            "base": BaseSystem(image="nvidia/cuda:12.4.1-cudnn-devel-ubuntu22.04"),
            "declarations": (CudaImage("12.4.1", "*", "devel"),),
        },
    ),
    (
        "install.vscode_extensions(['ms-python.python'])",
        {"declarations": (VscodeExtensions(("ms-python.python",)),)},
    ),
    (
        "install.vscode_extensions(['a.b-1.2.3', 'a.c@2.0.0-beta.1', './x.vsix'])",
        {"declarations": (VscodeExtensions(("a.b-1.2.3", "a.c@2.0.0-beta.1", "x.vsix")),)},
    ),
    ("config.apt_source('deb x')", {"declarations": (AptSource("deb x"),)}),
    (
        "config.pip_index(url='https://x.org/simple', extra_url='https://y.org', trust=True)",
        {"declarations": (PipIndex("https://x.org/simple", "https://y.org", True),)},
    ),
    ("config.owner(1000, 65535)", {"declarations": (ImageOwner(1000, 65535),)}),
    ("config.entrypoint(['date', '-u'])", {"declarations": (ImageEntrypoint(("date", "-u")),)}),
    ("config.sagemaker()", {"declarations": (SageMakerEntrypoint(),)}),
    (
        "config.sagemaker(['python', 'a.py'])",
        {"declarations": (SageMakerEntrypoint(("python", "a.py")),)},
    ),
    (
        "config.sagemaker(['a'], framework='mpi')",
        {"declarations": (SageMakerEntrypoint(("a",), "mpi"),)},
    ),
    ("config.jupyter()", {"declarations": (JupyterServer(),)}),
    ("config.jupyter(token='t', port=8888)", {"declarations": (JupyterServer("t", 8888),)}),
    ("config.gpu(count=2)", {"declarations": (GpuCount(2),)}),
    ("config.shm_size(size=1024)", {"declarations": (SharedMemory(1024),)}),
    (
        "config.repo('https://x.org/a', description='é')",
        {"declarations": (ImageRepository("https://x.org/a", "é"),)},
    ),
    (
        "config.conda_channel(channel='a: b', use_mamba=True)",
        {"declarations": (CondaChannels("a: b"), CondaEnvironment())},
    ),
    ("config.cran_mirror('https://x/')", {"declarations": (CranMirror("https://x"),)}),
    (
        "config.julia_pkg_server(url='https://x')",
        {"declarations": (JuliaPackageServer("https://x"),)},
    ),
    ("config.rstudio_server()", {"declarations": (RStudioServer(),)}),
    (
        "config.rstudio_server('2024.04.2+764')",
        {"declarations": (RStudioServer("2024.04.2-764"),)},
    ),
    ("io.copy('main.py', '/opt/')", {"steps": (CopyStep("main.py", "/opt/"),)}),
    ("io.copy(host_path='a', envd_path='/b')", {"steps": (CopyStep("a", "/b"),)}),
    (
        "io.copy(source='/bin/x', target='/bin/x', image='team/x:1')",
        {"steps": (CopyStep("/bin/x", "/bin/x", "team/x:1"),)},
    ),
    ("io.http('http://x.org/m.bin')", {"steps": (HttpStep("http://x.org/m.bin"),)}),
    ("io.http('https://x.org/m.bin')", {"steps": (HttpStep("https://x.org/m.bin"),)}),
    (
        f"io.http(url='https://x.org/', checksum='{SUM.upper()}', filename='m')".replace(
            "SHA256", "sha256"
        ),
        {"steps": (HttpStep("https://x.org/", SUM, "m"),)},
    ),
    (
        "runtime.environ(env={'B': '1', 'A': ''}, extra_path=['/opt/bin'])",
        {"declarations": (EnvironmentVariables((("B", "1"), ("A", "")), ("/opt/bin",)),)},
    ),
    (
        "runtime.command(commands={'train': 'python t.py', 'a': 'b'})",
        {"declarations": (NamedCommands((("train", "python t.py"), ("a", "b"))),)},
    ),
    (
        "runtime.expose(envd_port=8888, host_port=0, service='tb', listen_addr='0.0.0.0')",
        {"declarations": (PortExposure(ExposedPort(8888, 0, "tb", "0.0.0.0")),)},
    ),
    (
        "runtime.daemon(commands=[['tensorboard', '--logdir', 'x'], ['y']])",
        {"declarations": (BackgroundPrograms((("tensorboard", "--logdir", "x"), ("y",))),)},
    ),
    (
        "runtime.mount(host_path='~/a', envd_path='/a')",
        {"declarations": (HostMount(RuntimeMount("~/a", "/a")),)},
    ),
    (
        "runtime.mount(data.envd('dgl'), data.path.dgl)",
        {
            "declarations": (
                DataDirectory("dgl"),
                HostMount(RuntimeMount("data://dgl", "~/.dgl")),
            )
        },
    ),
    (
        "runtime.init([data.path.huggingface])",
        {"declarations": (InitCommands(("~/.cache/huggingface",)),)},
    ),
]


def describe_environment(environment: Environment) -> dict[str, Any]:
    values = msgspec.structs.asdict(environment)
    return {name: value for name, value in values.items() if name != "file"}


@pytest.mark.parametrize("evaluate", [body, python_body], ids=["starlark", "python"])
@pytest.mark.parametrize(("text", "expected"), CASES, ids=[text for text, _ in CASES])
def test_a_call_becomes_its_declaration(
    evaluate: Callable[[str], Environment], text: str, expected: dict[str, Any]
) -> None:
    assert describe_environment(evaluate(text)) == {**describe_environment(BARE), **expected}


def test_every_function_of_the_table_has_a_case() -> None:
    content = " ".join(text for text, _ in CASES) + " include("
    assert [name for name in FUNCTIONS if f"{name}(" not in content] == []


def test_include_is_recorded_with_its_commit() -> None:
    environment = envd(
        """
        lib = include("https://example.org/lib", ref="v1")
        def build():
            lib.tools()
        """,
        lib="def tools():\n    install.apt_packages(['git'])\n",
    )
    assert environment.includes == (IncludeRef("https://example.org/lib", "v1", COMMIT),)
    assert environment.system_packages == (SystemPackages(("git",)),)


def test_declarations_record_their_line_and_columns() -> None:
    environment = body(
        "install.python(\n  '3.11')\nrun([\n  'a'])\nx = 1; io.copy('ü', 'b'); x = 2"
    )
    spans = [environment.python, *environment.steps]
    assert [(s.span.line, s.span.column, s.span.end_column) for s in spans if s] == [
        (2, 5, 20),
        (6, 12, 29),
        (4, 5, 10),
    ]


def test_envd_files_copy_and_download_before_they_run() -> None:
    text = "run(['1']); io.copy('2', '/'); run(['3']); io.http('https://x.org/4')"
    ordered = (CopyStep("2", "/"), HttpStep("https://x.org/4"), RunStep(("1",)), RunStep(("3",)))
    assert body(text).steps == ordered


def test_python_files_keep_the_written_order() -> None:
    text = "run(['1']); io.copy('2', '/'); run(['3'])"
    assert python_body(text).steps == (RunStep(("1",)), CopyStep("2", "/"), RunStep(("3",)))


def test_equal_declarations_count_once() -> None:
    environment = body("config.gpu(2)\n" * 2 + "install.go('1')\n" * 2)
    assert environment.declarations == (GpuCount(2), GoToolchain("1"))
