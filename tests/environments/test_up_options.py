"""Options of ``danlu up``: ports, names of services and environments."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from danlu.engine.container_options import parse_volume
from danlu.engine.environment_directory import EnvironmentSpec, PortForward, check_environment_name
from danlu.environment.runtime_settings import JupyterSettings, RuntimeSettings
from danlu.environments.jupyter import add_jupyter, format_jupyter_url, replace_taken_port
from danlu.environments.manage import default_name
from danlu.environments.spec import UpOptions, build_spec, name_services, parse_port
from danlu.errors import UsageError
from danlu.util.paths import Paths


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8888", PortForward(8888, 8888)),
        ("80:8888", PortForward(8888, 80)),
        ("0.0.0.0:80:8888", PortForward(8888, 80, "0.0.0.0")),
        ("[::1]:80:8888", PortForward(8888, 80, "::1")),
    ],
)
def test_ports_are_parsed(text: str, expected: PortForward) -> None:
    assert parse_port(text) == expected


@pytest.mark.parametrize("text", ["", "x", "0", "65536", "1:", ":1", "1:2:3", "1:0", "-1", "1.5"])
def test_an_invalid_port_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="invalid port"):
        parse_port(text)


def test_two_ports_cannot_be_reached_at_one(tmp_path: Path) -> None:
    options = UpOptions(ports=("8765:8765", "8765:80"))
    with pytest.raises(UsageError, match="ports 8765 and 80 cannot both be reached"):
        build_spec(
            "digits",
            tmp_path,
            "sha256:0",
            RuntimeSettings(),
            options,
            Paths(tmp_path, tmp_path, tmp_path),
            earlier=None,
        )


def test_a_volume_without_a_source_is_rejected_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot mount .*/missing: no such file") as caught:
        parse_volume(f"{tmp_path}/missing:/data")
    assert "create it" in caught.value.hint


def test_services_are_named_after_their_programs() -> None:
    services = name_services((("/bin/tensorboard", "x"), ("tensorboard",), ("a b",)))
    assert [service.name for service in services] == ["tensorboard", "tensorboard#2", "a-b"]


def test_a_program_called_jupyter_is_not_the_server_with_a_token() -> None:
    services = name_services((("jupyter", "lab"), ("/sbin/init",)))
    assert [service.name for service in services] == ["jupyter#2", "init#2"]
    spec = EnvironmentSpec("digits", "sha256:0", datetime.now(UTC), services=services)
    assert format_jupyter_url(spec) == ""
    assert replace_taken_port(spec) == spec


def test_moving_the_port_of_jupyter_keeps_ports_with_the_same_name() -> None:
    spec = EnvironmentSpec("digits", "sha256:0", datetime.now(UTC))
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = int(server.getsockname()[1])
        mine = PortForward(8888, 8888, "127.0.0.1", "jupyter")
        started = add_jupyter(replace(spec, ports=(mine,)), JupyterSettings(), None)
        service = replace(started.services[0], environment={"JUPYTER_PORT": str(taken)})
        own = PortForward(taken, taken, "127.0.0.1", "jupyter", fixed=False)
        moved = replace_taken_port(replace(started, services=(service,), ports=(mine, own)))
    assert moved.ports[0] == mine
    assert moved.ports[1].port != taken
    assert moved.services[0].environment["JUPYTER_PORT"] == str(moved.ports[1].port)


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("/home/me/Digits", "digits"),
        ("/tmp/a b", "a-b"),
        ("/", "environment"),
        ("/x/数据", "environment"),
    ],
)
def test_an_environment_is_named_after_its_directory(directory: str, expected: str) -> None:
    assert check_environment_name(default_name(Path(directory))) == expected


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "A", "-a", "a" * 64, "a\n"])
def test_an_invalid_name_is_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="invalid environment name"):
        check_environment_name(name)
