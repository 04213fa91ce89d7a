"""Ctrl-C in `danlu serve`: one exit code at any moment, and no server that nobody asked for."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.settings import load_settings
from danlu.packing import serve_local
from danlu.packing.serve_options import ServeOptions
from danlu.sandbox import userns
from danlu.serving.server import main as server_main
from danlu.serving.server_files import _PROGRAM
from danlu.util.paths import Paths


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_the_server_ends_with_the_code_of_its_signal(
    number: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        server_main.WorkerGroup, "_start_worker", lambda group: signal.raise_signal(number)
    )
    handlers = {other: signal.getsignal(other) for other in (signal.SIGINT, signal.SIGTERM)}
    try:
        with server_main.bind_socket("127.0.0.1", 0) as listener:
            options = server_main.parse_options([])
            assert server_main.WorkerGroup(listener, [], options).run() == code
    finally:
        for other, handler in handlers.items():
            signal.signal(other, handler)


def test_a_server_that_is_interrupted_while_it_is_loaded_prints_no_traceback(
    tmp_path: Path,
) -> None:
    """The program of an image, with a module in place of the server's."""
    package = tmp_path / "server" / "model_server"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "main.py").write_text("import signal; signal.raise_signal(signal.SIGINT)\n")
    program = tmp_path / "serve"
    program.write_text(
        _PROGRAM.format(interpreter=sys.executable, root=tmp_path, server=package.parent)
    )
    result = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=False, timeout=100
    )
    assert (result.returncode, result.stderr) == (130, "")


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of environments that are removed."""
    names: list[str] = []
    monkeypatch.setattr(serve_local, "take_down", lambda name, settings, grace: names.append(name))
    monkeypatch.setattr(userns, "run_inside", lambda paths, work: None)
    return names


@pytest.mark.parametrize("phase", ["before", "starting", "waiting"])
def test_an_interrupted_start_in_the_background_leaves_only_an_earlier_server(
    phase: str, removed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings(Paths.of({"DANLU_HOME": str(tmp_path)}))
    environment = EnvironmentDirectory(settings.paths.environments / "serve-digits")
    environment.spec_file.parent.mkdir(parents=True)
    environment.spec_file.write_text("the earlier one")
    monkeypatch.setattr(serve_local, "_is_running", lambda *_: False)
    monkeypatch.setattr(serve_local, "_find_stop_seconds", lambda _: 1.0)
    monkeypatch.setattr(serve_local, "_require_free_port", lambda *_: None)

    def start_environment(*_: object, **__: Any) -> None:
        if phase != "before":
            environment.spec_file.write_text("the new one")
        if phase != "waiting":
            raise KeyboardInterrupt

    def wait_until_ready(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(serve_local, "start_environment", start_environment)
    monkeypatch.setattr(serve_local, "_wait_until_ready", wait_until_ready)
    with pytest.raises(KeyboardInterrupt):
        serve_local.start_server(
            "digits:1", ServeOptions(port=0), settings=settings, progress=lambda event: None
        )
    assert removed == ([] if phase == "before" else ["serve-digits"])
