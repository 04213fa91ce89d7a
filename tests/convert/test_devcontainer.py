"""``devcontainer.json``: conversion to a build file, export from one, and the round trip."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from danlu.convert import InitReport, init
from danlu.convert.devcontainer_export import describe_devcontainer, find_export_path, write_export
from danlu.environment.runtime_settings import ExposedPort
from danlu.environment.types import Environment
from danlu.errors import UsageError
from danlu.lang.functions.runtime import EnvironmentVariables
from danlu.lang.functions.steps import CopyStep
from danlu.lang.functions.vscode import VscodeExtensions
from danlu.project.project import Project


def convert(directory: Path, values: object) -> tuple[InitReport, Environment]:
    """Convert a ``devcontainer.json`` with these values, and evaluate the build file."""
    path = directory / ".devcontainer"
    path.mkdir(exist_ok=True)
    text = values if isinstance(values, str) else json.dumps(values)
    (path / "devcontainer.json").write_text(text, encoding="utf-8")
    report = init(directory, source=path, force=True)
    return report, Project.open(directory=directory).environment()


def find_variables(environment: Environment) -> dict[str, str]:
    result = environment.find_all(EnvironmentVariables)
    return {name: value for item in result for name, value in item.values}


def test_devcontainer_becomes_declarations(tmp_path: Path) -> None:
    _, environment = convert(
        tmp_path,
        {
            "image": "python:3.11-bookworm",
            "forwardPorts": [8888, "localhost:6006"],
            "portsAttributes": {"8888": {"label": "jupyter"}},
            "appPort": ["8000:9000", 8888],
            "containerEnv": {"MODE": "train", "SRC": "${containerWorkspaceFolder}/src"},
            "remoteEnv": {"PATH": "/opt/x/bin:${containerEnv:PATH}"},
            "hostRequirements": {"gpu": True},
            "customizations": {"vscode": {"extensions": ["ms-python.python"]}},
            "remoteUser": "dev",
        },
    )
    settings = environment.runtime_settings()
    assert environment.base.image == "python:3.11-bookworm"
    assert settings.ports == (
        ExposedPort(8888, service="jupyter"),
        ExposedPort(6006),
        ExposedPort(9000, 8000),
    )
    assert settings.gpus == 1
    assert find_variables(environment) == {"MODE": "train", "SRC": "/workspace/src"}
    assert environment.find_all(EnvironmentVariables)[0].path == ("/opt/x/bin",)
    extensions = environment.find(VscodeExtensions)
    assert extensions is not None
    assert extensions.names == ("ms-python.python",)


def test_commands_run_in_the_order_of_the_specification(tmp_path: Path) -> None:
    report, environment = convert(
        tmp_path,
        {
            "postStartCommand": {"a": "echo start", "b": ["echo", "two words"]},
            "postCreateCommand": "pip install -r requirements.txt && make assets",
            "onCreateCommand": ["sh", "-c", "echo $0 > created", "a b"],
            "updateContentCommand": "sudo apt-get update && sudo apt-get install -y jq",
            "image": "debian:12",
        },
    )
    assert environment.runtime_settings().init == (
        "[ -e ~/.onCreateCommand-1 ] || (\nsh -c 'echo $0 > created' 'a b'\n)"
        " && mkdir -p ~ && touch ~/.onCreateCommand-1",
        "[ -e ~/.postCreateCommand-1 ] || (\npip install -r requirements.txt && make assets\n)"
        " && mkdir -p ~ && touch ~/.postCreateCommand-1",
        "echo start",
        "echo 'two words'",
    )
    assert environment.steps == environment.python_packages == ()
    assert environment.system_packages[0].names == ("jq",)
    assert "packages that are only recommended" in report.omitted[0]


def test_commands_after_the_creation_run_once_and_later_ones_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "image": "debian:12",
        "onCreateCommand": "echo create >> log # note",
        "postCreateCommand": ["sh", "-c", "echo post >> log"],
        "postStartCommand": "echo start >> log",
    }
    _, environment = convert(tmp_path, values)
    monkeypatch.setenv("HOME", str(tmp_path))
    for _ in range(2):
        for command in environment.runtime_settings().init:
            subprocess.run(["/bin/sh", "-ec", command], cwd=tmp_path, check=True, timeout=20)
    assert (tmp_path / "log").read_text().split() == ["create", "post", "start", "start"]


def test_values_of_variables_are_written_as_javascript_does(tmp_path: Path) -> None:
    values = '{"image": "x", "containerEnv": {"A": 1, "B": true, "C": 1.0, "D": 0.5}}'
    _, environment = convert(tmp_path, values)
    assert find_variables(environment) == {"A": "1", "B": "true", "C": "1", "D": "0.5"}


def test_every_key_that_is_not_carried_over_is_listed(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "name": "n1",
        "initializeCommand": "touch host",
        "postAttachCommand": "echo attach",
        "runArgs": ["--ipc=host"],
        "remoteUser": "vscode",
        "capAdd": ["SYS_PTRACE"],
        "someFutureKey": {"x": 1},
        "workspaceFolder": "/workspaces/x",
        "otherPortsAttributes": {"onAutoForward": "ignore"},
    }
    report, _ = convert(tmp_path, {"image": "debian:12", **keys})
    skipped = report.text.partition("# Skipped")[2]
    for key in keys:
        assert f"#   {key}: " in skipped
    assert not (tmp_path / "host").exists()


def test_parts_of_keys_that_are_not_carried_over_are_listed(tmp_path: Path) -> None:
    report, environment = convert(
        tmp_path,
        {
            "image": "debian:12",
            "forwardPorts": ["db:5432"],
            "mounts": ["source=a,target=/a,type=bind"],
            "containerEnv": {"TOKEN": "${localEnv:TOKEN}", "MODE": "${localEnv:MODE:fast}"},
            "customizations": {
                "vscode": {"settings": {"a": 1}, "extensions": ["-foo.bar"]},
                "jetbrains": {"backend": "x"},
            },
        },
    )
    skipped = report.text.partition("# Skipped")[2]
    for text in ("db:5432", "target=/a", "TOKEN", "MODE:fast", "settings"):
        assert text in skipped
    assert "-foo.bar" in skipped
    assert "jetbrains" in skipped
    assert environment.runtime_settings().mounts == ()
    assert find_variables(environment) == {}
    assert any("mounts were not carried over" in note for note in report.notes)


def find_answer(directory: Path, text: str) -> dict[str, Any]:
    """Return what the build file has of a ``devcontainer.json``, and what ``init`` lists."""
    report, environment = convert(directory, text)
    extensions = environment.find(VscodeExtensions)
    return {
        "image": environment.base.image,
        "env": find_variables(environment),
        "extensions": extensions.names if extensions else (),
        "listed": report.text,
    }


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"image": "x//y/*z*/", "name": ",]"}', {"image": "x//y/*z*/"}),
        ('{"image": "x", "containerEnv": {"${localWorkspaceFolderBasename}": "x"}}', None),
        ('{"image": "x", "containerEnv": {"A": 1, "B": true}}', {"env": {"A": "1", "B": "true"}}),
        ('{"image": "x", "extensions": ["a.b"]}', {"extensions": ("a.b",)}),
        # The CLI takes what jsonc-parser makes of a broken file; these are refused.
        ('{"image": "a", "image": "b"}', "'image' occurs twice"),
        ('{"image": "x", "init": true', "invalid JSON"),
        ('{"image": "x" "init": true}', "invalid JSON"),
        ('{"image": "x", "forwardPorts": [0x10]}', "invalid JSON"),
        # A build file is the same on every machine: what depends on one is listed.
        ('{"image": "x", "containerEnv": {"A": "${localEnv:NOPE:http://h.example:1}"}}', "A"),
        ('{"image": "x", "containerEnv": {"A": "${localEnv:EMPTY:d}"}}', "A"),
        ('{"image": "x", "containerEnv": {"A": "${env:HOME}"}}', "A"),
        ('{"image": "x", "containerEnv": {"A": "${nope}"}}', "A"),
        ('{"image": "x", "containerEnv": {"A": "${localEnv:NOPE:${localEnv:HOME}}"}}', "A"),
        ('{"image": "x", "remoteEnv": {"A": "${containerEnv:NOPE:d}"}}', "A"),
        ('{"image": "x", "containerEnv": {"C": null}}', "C"),
    ],
)
def test_files_mean_what_the_dev_container_cli_says_or_are_refused_or_listed(
    tmp_path: Path, text: str, right: dict[str, Any] | str | None
) -> None:
    """The answers of ``devcontainer read-configuration`` 0.89."""
    if isinstance(right, str) and right != "A" and right != "C":
        with pytest.raises(UsageError, match=right):
            convert(tmp_path, text)
        return
    found = find_answer(tmp_path, text)
    if isinstance(right, dict):
        assert {name: found[name] for name in right} == right
    else:
        assert found["env"] == {}
        name = right or "localWorkspaceFolderBasename"
        assert any(name in line for line in found["listed"].splitlines() if "#" in line)


def test_features_are_not_installed_with_a_note(tmp_path: Path) -> None:
    features = {"registry.example/devcontainers/features/node:1": {"version": "20"}}
    report, _ = convert(tmp_path, {"image": "debian:12", "features": features})
    assert any("features were not carried over" in note for note in report.notes)
    assert "features/node:1" in report.text.partition("# Skipped")[2]


def test_dockerfile_is_read_with_its_arguments_target_and_context(tmp_path: Path) -> None:
    directory = tmp_path / ".devcontainer"
    directory.mkdir()
    (directory / "Dockerfile").write_text(
        "ARG TAG=11\nFROM debian:$TAG AS base\nCOPY tool.sh /opt/\n"
        "FROM golang AS tools\nRUN go build\n"
        "FROM base AS dev\nRUN apt-get install -y jq\nCOPY --from=tools /go /go\n"
        "FROM alpine\nRUN never\n"
    )
    (directory / "tool.sh").write_text("true")
    build = {"dockerfile": "Dockerfile", "args": {"TAG": "12"}, "target": "dev", "options": ["-x"]}
    report, environment = convert(tmp_path, {"build": build})
    assert environment.base.image == "debian:12"
    assert [step.source for step in environment.steps if isinstance(step, CopyStep)] == [
        ".devcontainer/tool.sh",
        "/go",
    ]
    assert environment.system_packages[0].names == ("jq",)
    assert 'run(commands=["cd /", "go build"])' in report.text
    assert "build.options" in report.text
    assert "never" not in report.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"dockerComposeFile": "c.yml", "service": "x"}', "Docker Compose"),
        ('{"name": "x"}', "neither `image` nor"),
        ("{", "invalid JSON"),
        ("[]", "must contain an object"),
        ('{"image": "a", "image": "b"}', "occurs twice"),
        ('{"build": {"dockerfile": "../../Dockerfile"}}', "outside the project"),
        ('{"build": {"dockerfile": "none"}}', "not found"),
        ('{"image": "debian:12", "containerEnv": 3}', "invalid value of containerEnv"),
        ('{"build": {"dockerfile": "D", "args": [1]}}', "invalid value of build"),
        ('{"build": {"dockerfile": "\\u0000"}}', "invalid value of build"),
        ('{"image": "debian:12", "customizations": {"vscode": null}}', "value of customizations"),
        ('{"image": "debian:12", "portsAttributes": {"1": 5}}', "value of portsAttributes"),
        ('{"image": "debian:12", "postStartCommand": 3}', "invalid command"),
        ('{"image": "debian:${localEnv:TAG}"}', "variables of the host"),
    ],
)
def test_invalid_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convert(tmp_path, text)
    assert not (tmp_path / "build.envd").exists()


def test_text_of_a_file_never_becomes_code(tmp_path: Path) -> None:
    evil = 'x"\n    run(["evil"])\u2028    run(["evil"])\r    run(["evil"])'
    values = {"image": "debian:12", "name": evil, "containerEnv": {"A": evil}, "build": {"x": evil}}
    report, environment = convert(tmp_path, values)
    assert environment.steps == ()
    assert find_variables(environment) == {"A": evil}
    assert "build.x" in report.text


def test_several_dev_containers_are_not_guessed_between(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / ".devcontainer" / name).mkdir(parents=True)
        (tmp_path / ".devcontainer" / name / "devcontainer.json").write_text('{"image": "x"}')
    with pytest.raises(UsageError, match="several dev containers"):
        init(tmp_path, source=tmp_path / ".devcontainer")


BUILD_FILE = """
def build():
    base(image="debian:12")
    runtime.environ({"MODE": "train", "QUOTED": "a \\"b\\" ü"})
    runtime.expose(8888, service="jupyter")
    runtime.expose(6006)
    runtime.mount("data", "/data")
    runtime.mount("~/.aws", "~/.aws")
    runtime.mount(data.envd("cache"), "/cache")
    runtime.init(["mkdir -p /tmp/x"])
    runtime.daemon([["tensorboard", "--logdir", "logs"]])
    config.gpu(1)
    install.vscode_extensions(["ms-python.python", "charliermarsh.ruff-2025.28.0"])
"""


def test_export_and_conversion_back_give_the_same_settings(tmp_path: Path) -> None:
    (tmp_path / "build.envd").write_text(BUILD_FILE)
    before = Project.open(directory=tmp_path).environment()
    export = describe_devcontainer(before, "digits", "registry.example.org/team/digits:1")
    assert export.skipped == (
        "runtime.daemon: tensorboard --logdir logs (a dev container has no services)",
    )
    (tmp_path / "copy").mkdir()
    write_export(find_export_path(tmp_path / "copy", force=False), export)
    init(tmp_path / "copy", source=tmp_path / "copy" / ".devcontainer")
    after = Project.open(directory=tmp_path / "copy").environment()
    old, new = before.runtime_settings(), after.runtime_settings()
    assert (old.ports, old.init, old.gpus) == (new.ports, new.init, new.gpus)
    assert find_variables(before) == find_variables(after)
    assert after.base.image == "registry.example.org/team/digits:1"
    extensions = after.find(VscodeExtensions)
    assert extensions is not None
    assert extensions.names == ("ms-python.python", "charliermarsh.ruff@2025.28.0")


def test_export_does_not_overwrite_a_file(tmp_path: Path) -> None:
    path = find_export_path(tmp_path, force=False)
    path.parent.mkdir()
    path.write_text("{}")
    with pytest.raises(UsageError, match="already exists"):
        find_export_path(tmp_path, force=False)
    assert find_export_path(tmp_path, force=True) == path
