"""Every function of the table, in every spelling, becomes what it should, in both languages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from danlu.environment.types import (
    AptSource,
    Base,
    Copy,
    Entrypoint,
    Environ,
    Environment,
    GitConfig,
    Http,
    IncludeUse,
    Jupyter,
    Other,
    Owner,
    PipIndex,
    Python,
    PythonPackages,
    Run,
    Secret,
    Shell,
    SystemPackages,
    Uv,
)
from danlu.lang.table import TABLE
from tests.lang.support import COMMIT, body, envd, python_body

BARE = Environment("build", "build.envd", Base(image="ubuntu:22.04"))
SUM = "sha256:" + "0a" * 32


def other(function: str, *arguments: tuple[str, str], at_start: bool = False) -> dict[str, Any]:
    return {"other": (Other(function, arguments, at_start=at_start),)}


def at_start(function: str, *arguments: tuple[str, str]) -> dict[str, Any]:
    return other(function, *arguments, at_start=True)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("base()", {}),
    ("base(dev=True)", {"base": Base(image="ubuntu:22.04", dev=True)}),
    ("base('debian:12', True)", {"base": Base(image="debian:12", dev=True)}),
    ("base(image='python:3.11-slim')", {"base": Base(image="python:3.11-slim")}),
    ("base(os='debian12')", {"base": Base(os="debian12")}),
    ("base(os='debian12', dev=True)", {"base": Base(os="debian12", dev=True)}),
    ("base('debian12')", {"base": Base(os="debian12")}),
    (
        "base(os='ubuntu20.04', language='python3.8')",
        {
            "base": Base(os="ubuntu20.04", dev=True, language="python3.8"),
            "python": Python("3.8"),
        },
    ),
    (
        "base('ubuntu20.04', 'python3')",
        {"base": Base(os="ubuntu20.04", dev=True, language="python3"), "python": Python("")},
    ),
    (
        "base(language='python3.9', dev=False)",
        {"base": Base(os="ubuntu22.04", language="python3.9"), "python": Python("3.9")},
    ),
    (
        "base(os='ubuntu22.04', language='r')",
        {"base": Base(os="ubuntu22.04", dev=True, language="r"), **other("install.r_lang")},
    ),
    (
        "base(language='julia')",
        {"base": Base(os="ubuntu22.04", dev=True, language="julia"), **other("install.julia")},
    ),
    (
        "base(language='python3'); install.python('3.11')",
        {
            "base": Base(os="ubuntu22.04", dev=True, language="python3"),
            "python": Python("3.11"),
        },
    ),
    ("shell()", {"shell": Shell("bash")}),
    ("shell('zsh')", {"shell": Shell("zsh")}),
    ("shell(name='fish')", {"shell": Shell("fish")}),
    ("run(['make', 'make install'])", {"steps": (Run(("make", "make install")),)}),
    ("run(commands=('a',), mount_host=True)", {"steps": (Run(("a",), mount_host=True),)}),
    (
        "run(['a'], secrets=['token', {'id': 'key', 'target': '/etc/key'}], ssh=True)",
        {
            "steps": (
                Run(
                    ("a",),
                    secrets=(Secret("token", "/run/secrets/token"), Secret("key", "/etc/key")),
                    ssh=True,
                ),
            )
        },
    ),
    ("run([])", {}),
    (
        "git_config(name='Ada', email='ada@example.org', editor='vim')",
        {"git_config": GitConfig("Ada", "ada@example.org", "vim")},
    ),
    ("git_config(email=None)", {"git_config": GitConfig()}),
    ("install.python()", {"python": Python("3.11")}),
    ("install.python('3.12.1')", {"python": Python("3.12.1")}),
    ("install.python(version='')", {"python": Python("")}),
    ("install.uv()", {"uv": Uv("3.11")}),
    ("install.uv(python_version='3.12')", {"uv": Uv("3.12")}),
    (
        "install.apt_packages(['git', 'vim=2:9*']); install.apt_packages(name=('curl',))",
        {"system_packages": (SystemPackages(("git", "vim=2:9*")), SystemPackages(("curl",)))},
    ),
    ("install.apt_packages()", {}),
    (
        "install.python_packages(['numpy', 'torch ; python_version > \"3\"'])",
        {"python_packages": (PythonPackages(("numpy", 'torch ; python_version > "3"')),)},
    ),
    (
        "install.python_packages(requirements='r.txt', local_wheels=['a.whl'])",
        {"python_packages": (PythonPackages((), "r.txt", ("a.whl",)),)},
    ),
    (
        "install.python_packages(['torch --extra-index-url https://x.org', '-f https://y.org'])",
        {
            "python_packages": (
                PythonPackages(("torch", "--extra-index-url https://x.org", "-f https://y.org")),
            )
        },
    ),
    ("install.conda()", other("install.conda")),
    ("install.conda(use_mamba=True)", other("install.conda", ("use_mamba", "true"))),
    (
        "install.conda_packages(['gcc'], channel=['conda-forge'])",
        other("install.conda_packages", ("channel", '["conda-forge"]'), ("name", '["gcc"]')),
    ),
    (
        "install.conda_packages(env_file='env.yaml')",
        other("install.conda_packages", ("env_file", '"env.yaml"')),
    ),
    (
        "install.pixi(use_pixi_mirror=True, pypi_index='https://x.org')",
        other("install.pixi", ("pypi_index", '"https://x.org"'), ("use_pixi_mirror", "true")),
    ),
    ("install.r_lang()", other("install.r_lang")),
    ("install.r_packages(['remotes'])", other("install.r_packages", ("name", '["remotes"]'))),
    ("install.julia()", other("install.julia")),
    ("install.julia_packages(['Flux'])", other("install.julia_packages", ("name", '["Flux"]'))),
    ("install.rust()", other("install.rust")),
    ("install.rust(version='1.72.0')", other("install.rust", ("version", '"1.72.0"'))),
    ("install.go(version=None)", other("install.go")),
    ("install.nodejs('25.1.0')", other("install.nodejs", ("version", '"25.1.0"'))),
    ("install.codex()", other("install.codex")),
    (
        "install.cuda(version='11.2.2', cudnn='8')",
        other("install.cuda", ("version", '"11.2.2"')),
    ),
    (
        "install.vscode_extensions(['ms-python.python'])",
        other("install.vscode_extensions", ("name", '["ms-python.python"]')),
    ),
    ("config.apt_source('deb x')", {"apt_source": AptSource("deb x")}),
    (
        "config.pip_index(url='https://x.org/simple', extra_url='https://y.org', trust=True)",
        {"pip_index": PipIndex("https://x.org/simple", "https://y.org", True)},
    ),
    ("config.owner(1000, 65535)", {"owner": Owner(1000, 65535)}),
    ("config.entrypoint(['date', '-u'])", {"entrypoint": Entrypoint(("date", "-u"))}),
    ("config.jupyter()", {"jupyter": Jupyter()}),
    ("config.jupyter(token='t', port=8888)", {"jupyter": Jupyter("t", 8888)}),
    ("config.gpu(count=2)", at_start("config.gpu", ("count", "2"))),
    ("config.shm_size(size=1024)", at_start("config.shm_size", ("size", "1024"))),
    (
        "config.repo('https://x.org/a', description='é')",
        at_start("config.repo", ("description", '"é"'), ("url", '"https://x.org/a"')),
    ),
    (
        "config.conda_channel(channel='a: b', use_mamba=True)",
        other("config.conda_channel", ("channel", '"a: b"'), ("use_mamba", "true")),
    ),
    ("config.cran_mirror('https://x')", other("config.cran_mirror", ("url", '"https://x"'))),
    (
        "config.julia_pkg_server(url='https://x')",
        other("config.julia_pkg_server", ("url", '"https://x"')),
    ),
    ("config.rstudio_server()", other("config.rstudio_server")),
    ("io.copy('main.py', '/opt/')", {"steps": (Copy("main.py", "/opt/"),)}),
    ("io.copy(host_path='a', envd_path='/b')", {"steps": (Copy("a", "/b"),)}),
    (
        "io.copy(source='/bin/x', target='/bin/x', image='team/x:1')",
        {"steps": (Copy("/bin/x", "/bin/x", "team/x:1"),)},
    ),
    ("io.http('https://x.org/m.bin')", {"steps": (Http("https://x.org/m.bin"),)}),
    (
        f"io.http(url='https://x.org/', checksum='{SUM.upper()}', filename='m')".replace(
            "SHA256", "sha256"
        ),
        {"steps": (Http("https://x.org/", SUM, "m"),)},
    ),
    (
        "runtime.environ(env={'B': '1', 'A': ''}, extra_path=['/opt/bin'])",
        {"environ": (Environ((("B", "1"), ("A", "")), ("/opt/bin",)),)},
    ),
    (
        "runtime.command(commands={'train': 'python t.py', 'a': 'b'})",
        at_start("runtime.command", ("commands", '{"a":"b","train":"python t.py"}')),
    ),
    (
        "runtime.expose(envd_port=8888, host_port=0, service='tb', listen_addr='0.0.0.0')",
        at_start(
            "runtime.expose",
            ("envd_port", "8888"),
            ("listen_addr", '"0.0.0.0"'),
            ("service", '"tb"'),
        ),
    ),
    (
        "runtime.daemon(commands=[['tensorboard', '--logdir', 'x'], ['y']])",
        at_start("runtime.daemon", ("commands", '[["tensorboard","--logdir","x"],["y"]]')),
    ),
    (
        "runtime.mount(host_path='~/a', envd_path='/a')",
        at_start("runtime.mount", ("envd_path", '"/a"'), ("host_path", '"~/a"')),
    ),
    (
        "runtime.mount(data.envd('dgl'), data.path.dgl)",
        {
            "other": (
                Other("data.envd", (("name", '"dgl"'),), at_start=True),
                Other(
                    "runtime.mount",
                    (("envd_path", '"~/.dgl"'), ("host_path", '"data://dgl"')),
                    at_start=True,
                ),
            )
        },
    ),
    (
        "runtime.init([data.path.huggingface])",
        at_start("runtime.init", ("commands", '["~/.cache/huggingface"]')),
    ),
]


def described(environment: Environment) -> dict[str, Any]:
    values = msgspec.structs.asdict(environment)
    return {name: value for name, value in values.items() if name != "file"}


@pytest.mark.parametrize("evaluate", [body, python_body], ids=["starlark", "python"])
@pytest.mark.parametrize(("text", "expected"), CASES, ids=[text for text, _ in CASES])
def test_a_call_becomes_its_declaration(
    evaluate: Callable[[str], Environment], text: str, expected: dict[str, Any]
) -> None:
    assert described(evaluate(text)) == {**described(BARE), **expected}


def test_every_function_of_the_table_has_a_case() -> None:
    written = " ".join(text for text, _ in CASES) + " include("
    assert [name for name in TABLE if f"{name}(" not in written] == []


def test_an_include_is_noted_with_its_commit() -> None:
    environment = envd(
        """
        lib = include("https://example.org/lib", ref="v1")
        def build():
            lib.tools()
        """,
        lib="def tools():\n    install.apt_packages(['git'])\n",
    )
    assert environment.includes == (IncludeUse("https://example.org/lib", "v1", COMMIT),)
    assert environment.system_packages == (SystemPackages(("git",)),)


def test_declarations_know_their_line_and_columns() -> None:
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
    ordered = (Copy("2", "/"), Http("https://x.org/4"), Run(("1",)), Run(("3",)))
    assert body(text).steps == ordered


def test_python_files_keep_the_written_order() -> None:
    text = "run(['1']); io.copy('2', '/'); run(['3'])"
    assert python_body(text).steps == (Run(("1",)), Copy("2", "/"), Run(("3",)))


def test_equal_declarations_count_once() -> None:
    environment = body("install.go('1')\ninstall.go('1')\nshell()\nshell('bash')")
    assert environment.other == (Other("install.go", (("version", '"1"'),)),)
    assert environment.shell == Shell("bash")
