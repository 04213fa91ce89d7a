"""Runtime settings of a build file, which change nothing in the image."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from danlu.assemble.assemble import assemble
from danlu.environment.runtime_settings import (
    ExposedPort,
    JupyterSettings,
    RuntimeMount,
    RuntimeSettings,
)
from danlu.environment.types import Environment, RuntimeDeclaration
from danlu.errors import BuildFileError
from danlu.lang.evaluation import evaluate
from danlu.lang.functions import FUNCTIONS
from tests.lang.support import InMemoryLoader, body, envd, finding, get_marked_text, python_body

EVERYTHING = """
config.gpu(2)
config.shm_size(512)
runtime.command({"train": "python train.py", "unit tests": "pytest"})
runtime.expose(8080, service="web")
runtime.expose(6006, 16006, listen_addr="0.0.0.0")
runtime.daemon([["tensorboard", "--logdir", "logs"]])
runtime.daemon([["redis-server"]])
runtime.mount("~/data", "/data")
runtime.mount(data.envd("models"), data.path.dgl)
runtime.init(["mkdir -p /tmp/a", "touch /tmp/a/b"])
"""

SETTINGS = RuntimeSettings(
    commands=(("train", "python train.py"), ("unit tests", "pytest")),
    mounts=(RuntimeMount("~/data", "/data"), RuntimeMount("data://models", "~/.dgl")),
    init=("mkdir -p /tmp/a", "touch /tmp/a/b"),
    daemons=(("tensorboard", "--logdir", "logs"), ("redis-server",)),
    ports=(ExposedPort(8080, service="web"), ExposedPort(6006, 16006, address="0.0.0.0")),
    gpus=2,
    shm_size=512,
)


@pytest.mark.parametrize("evaluate", [body, python_body], ids=["starlark", "python"])
def test_settings_combine_what_all_calls_declare(evaluate: Callable[[str], Environment]) -> None:
    assert evaluate(EVERYTHING).runtime_settings() == SETTINGS


def test_the_environment_of_a_file_without_such_calls_has_default_settings() -> None:
    assert body("base()").runtime_settings() == RuntimeSettings()


def test_jupyter_runs_a_server_whose_token_is_not_shown() -> None:
    jupyter = body("config.jupyter(token='hidden', port=8888)").runtime_settings().jupyter
    assert jupyter == JupyterSettings("hidden", 8888)
    assert "hidden" not in repr(jupyter)


def test_settings_survive_being_stored() -> None:
    stored = msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(SETTINGS)))
    assert msgspec.convert(stored, RuntimeSettings) == SETTINGS


def test_the_image_is_the_same_without_them() -> None:
    plain, started = body("install.go('1.22')"), body(f"install.go('1.22')\n{EVERYTHING}")
    assert assemble(started, None).digest == assemble(plain, None).digest
    assert started.strip_runtime() == plain


def test_functions_that_act_at_start_are_listed() -> None:
    runtime_only = sorted(name for name, item in FUNCTIONS.items() if item.runtime_only)
    environment = body(EVERYTHING)
    assert list(environment.start_functions) == runtime_only
    assert all(isinstance(item, RuntimeDeclaration) for item in environment.declarations)
    assert body("config.jupyter()").start_functions == ("config.jupyter",)


def test_equal_calls_count_once() -> None:
    settings = body(EVERYTHING + EVERYTHING.replace("runtime.daemon", "#")).runtime_settings()
    assert (settings.commands, settings.mounts) == (SETTINGS.commands, SETTINGS.mounts)
    assert settings.ports == SETTINGS.ports


# (calls, what the message says, what is marked in the last line, a word of the hint)
ERRORS = [
    ("runtime.mount('/a', 'data')", "invalid path 'data'", "'data'", "/data"),
    ("runtime.mount('/a', '/')", "invalid path '/'", "'/'", "absolute"),
    ("runtime.mount('/a', '~/')", "invalid path '~/'", "'~/'", "absolute"),
    ("runtime.mount('/a', '~root/x')", "invalid path", "'~root/x'", "absolute"),
    ("runtime.mount('/a', '/data/../etc')", "invalid path", "'/data/../etc'", "absolute"),
    ("runtime.mount('/a', '/proc')", "/proc belongs to the kernel", "'/proc'", ""),
    ("runtime.mount('/a', '//sys/./fs')", "/sys belongs to the kernel", "'//sys/./fs'", ""),
    ("runtime.mount('/a', '/dev/sda')", "/dev belongs to the kernel", "'/dev/sda'", ""),
    ("runtime.mount('/a', '/dev/shm')", "cannot mount", "'/dev/shm'", "config.shm_size"),
    ("runtime.mount('', '/a')", "empty path", "''", ""),
    ("runtime.mount('~root/a', '/a')", "invalid path '~root/a'", "'~root/a'", "in full"),
    ("runtime.mount('data://../x', '/a')", "invalid name '../x'", "'data://../x'", "letters"),
    ("runtime.mount('data://', '/a')", "invalid name ''", "'data://'", "letters"),
    ("data.envd('..')", "invalid name '..'", "'..'", "letters"),
    (
        "runtime.mount('/a', '/x')\nruntime.mount('/b', '/x/')",
        "something else is mounted at /x/",
        "'/x/'",
        "build.envd:2",
    ),
    (
        "runtime.command({'a': 'x'})\nruntime.command({'a': 'y'})",
        "duplicate command name 'a'",
        "{'a': 'y'}",
        "build.envd:2",
    ),
    ("runtime.command({'-x': 'y'})", "invalid name '-x'", "{'-x': 'y'}", "letters"),
    ("runtime.command({'a ': 'y'})", "invalid name 'a '", "{'a ': 'y'}", "letters"),
    ("runtime.command({'a\\nb': 'y'})", "invalid name", "{'a\\nb': 'y'}", "letters"),
    ("runtime.command({'a': ' '})", "command 'a' is empty", "{'a': ' '}", ""),
    ("runtime.daemon([['a'], []])", "program 2 is empty", "[['a'], []]", "inner list"),
    ("runtime.daemon([['']])", "program 1 is empty", "[['']]", "inner list"),
    ("runtime.init(['a', ' '])", "command 2 is empty", "['a', ' ']", ""),
    (
        "runtime.expose(80)\nruntime.expose(80, 8080)",
        "port 80 is exposed twice",
        "80",
        "build.envd:2",
    ),
    (
        "runtime.expose(80, 8080)\nruntime.expose(81, 8080)",
        "port 8080 of the host is used twice",
        "8080",
        "build.envd:2",
    ),
    ("runtime.expose(80, listen_addr='lan')", "invalid IP address", "listen_addr='lan'", "0.0.0.0"),
    ("config.gpu(1)\nconfig.gpu(2)", "declared twice", "config.gpu(2)", "build.envd:2"),
]


@pytest.mark.parametrize(("text", "message", "mark", "hint"), ERRORS)
def test_invalid_calls_are_errors_with_their_place(
    text: str, message: str, mark: str, hint: str
) -> None:
    with pytest.raises(BuildFileError) as caught:
        body(text)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert get_marked_text(caught.value) == mark


LIBRARY = """
def tools():
    runtime.mount("~/.ssh", "/keys")

def call(function):
    function("~/.ssh")

PATHS = ["~/a"]
mount = runtime.mount
"""
USES = "lib = include('https://example.org/lib')\n"
PLACE = "https://example.org/lib/lib.envd"


def mounts_of(text: str) -> tuple[RuntimeMount, ...]:
    return envd(USES + text, lib=LIBRARY).runtime_settings().mounts


def test_a_mount_of_an_included_repository_names_its_place() -> None:
    mounts = mounts_of("def build():\n    lib.tools()\n")
    assert mounts == (RuntimeMount("~/.ssh", "/keys", f"{PLACE}:3"),)


def test_arguments_that_an_included_repository_chooses_are_its_own() -> None:
    passed = mounts_of("def build():\n    lib.call(lambda path: runtime.mount(path, '/x'))\n")
    assert [mount.included_from for mount in passed] == [f"{PLACE}:6"]
    handed = mounts_of("def build():\n    lib.call(lambda path: lib.mount(path, '/x'))\n")
    assert [mount.included_from for mount in handed] == [f"{PLACE}:6"]


def test_mounts_written_in_the_project_are_the_users() -> None:
    mounts = mounts_of("def build():\n    [runtime.mount(path, '/x') for path in lib.PATHS]\n")
    assert mounts == (RuntimeMount("~/a", "/x"),)


def test_the_project_may_allow_a_mount_by_writing_it() -> None:
    own = "    runtime.mount('~/.ssh', '/keys')\n"
    for text in (f"    lib.tools()\n{own}", f"{own}    lib.tools()\n"):
        assert mounts_of(f"def build():\n{text}") == (RuntimeMount("~/.ssh", "/keys"),)


def test_a_mount_at_the_top_level_of_an_included_file_is_its_own() -> None:
    text = f"{USES}def build():\n    pass\n"
    environment = envd(text, lib="runtime.mount('/etc', '/keys')\n")
    assert [mount.included_from for mount in environment.runtime_settings().mounts] == [
        f"{PLACE}:1"
    ]


def test_the_place_of_a_mount_has_no_credentials() -> None:
    text = "lib = include('https://token@example.org/lib')\ndef build():\n    lib.tools()\n"
    repositories = {"https://token@example.org/lib": {"lib.envd": LIBRARY}}
    environment = evaluate("build.envd", loader=InMemoryLoader({"build.envd": text}, repositories))
    (mount,) = environment.runtime_settings().mounts
    assert mount.included_from == f"{PLACE}:3"


def test_an_error_in_an_included_file_is_at_its_line() -> None:
    error = finding(
        f"{USES}def build():\n    lib.bad()\n", lib="def bad():\n    runtime.init([''])\n"
    )
    assert "command 1 is empty" in error.message
