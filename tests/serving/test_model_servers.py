"""Other model servers: which packages they need, and how their adapters start them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.serving import predictor_values, runner
from danlu.serving.model_servers import (
    COMMAND,
    DANLU,
    MODEL_SERVERS,
    SHARED_MODULE,
    choose_server,
    find_model_server,
    list_server_packages,
)
from danlu.serving.server_files import write_adapter

REQUIRES = {
    "bentoml": ["uvicorn[standard]>=1", "attrs", "torch; extra == 'gpu'", "Missing_Package"],
    "uvicorn": ["click", 'httptools; extra == "standard"', 'h2; extra == "http2"'],
    "click": ["colorama; sys_platform == 'win32'", "not a requirement!"],
    "attrs": ["bentoml"],
}
LOCKED = ("BentoML", "uvicorn", "attrs", "click", "httptools", "h2", "torch", "numpy")


def test_a_server_keeps_its_package_and_all_that_it_depends_on() -> None:
    found = list_server_packages(MODEL_SERVERS["bentoml"], LOCKED, REQUIRES)
    assert found == ("attrs", "bentoml", "click", "httptools", "uvicorn")
    assert list_server_packages(MODEL_SERVERS["triton"], LOCKED, REQUIRES) == ()


def test_a_server_that_the_environment_lacks_is_named() -> None:
    with pytest.raises(UsageError, match="no package mlserver") as caught:
        list_server_packages(MODEL_SERVERS["mlserver"], LOCKED, REQUIRES)
    assert 'install.python_packages(name=["mlserver"])' in caught.value.hint


def test_names_are_servers_and_other_texts_are_commands() -> None:
    assert choose_server("danlu") is DANLU
    assert choose_server("/opt/server --port $PORT") is COMMAND
    for text in ("", " ", "bento", "torchserve"):
        with pytest.raises(UsageError, match="unknown model server"):
            choose_server(text)
    # Of images: an older one has no label, and its content is not trusted.
    assert find_model_server("") is DANLU
    assert find_model_server("../x") is DANLU
    assert find_model_server("command") is COMMAND


def test_every_server_has_its_adapter_and_probes() -> None:
    others = {server for server in MODEL_SERVERS.values() if server is not DANLU} | {COMMAND}
    for server in others:
        compile(server.adapter.read_text(), str(server.adapter), "exec")
        assert server.ready_path.startswith("/")
    files = {path.stem for path in SHARED_MODULE.parent.glob("*.py")}
    assert files - {"__init__", "packed"} == {server.name for server in others}


def install(place: Path, name: str, command: str = "") -> Path:
    """Lay the files out as an image has them; gives the program, which this Python runs."""
    root = place / "predictor"
    written = place / "written"
    written.mkdir()
    server = COMMAND if command else MODEL_SERVERS[name]
    write_adapter(written, server, sys.executable, command)
    root.mkdir()
    (root / "server").symlink_to(written / "server")
    shutil.copy(runner.__file__, root / "run.py")
    shutil.copy(predictor_values.__file__, root)
    program = written / "bin" / "serve"
    text = program.read_text().replace("/opt/predictor", str(root))
    program.write_text(text)
    return program


def test_a_command_gets_the_options_as_variables(tmp_path: Path) -> None:
    program = install(tmp_path, "", "printf '%s\\n' $HOST $PORT $WORKERS $MODEL_DIR")
    arguments = ("--host", "127.0.0.1", "--port", "81", "--workers", "3", "--max-batch", "9")
    output = subprocess.check_output([program, *arguments], text=True)
    assert output.split() == ["127.0.0.1", "81", "3", str(tmp_path / "predictor" / "model")]


def test_triton_gets_a_model_repository(tmp_path: Path) -> None:
    program = install(tmp_path, "triton")
    fake = tmp_path / "bin" / "tritonserver"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$PYTHONPATH"; echo "$@"; cat "$2/digits/config.pbtxt"\n')
    fake.chmod(0o755)
    environ = {**os.environ, "PATH": f"{fake.parent}:{os.environ['PATH']}", "MODEL_NAME": "digits"}
    output = subprocess.check_output(
        [program, "--port", "81", "--workers", "2"], env=environ, text=True
    )
    path, arguments, *config = output.splitlines()
    # The model of the Python backend imports what the adapters share.
    assert str(tmp_path / "predictor" / "server") in path.split(":")
    repository = Path(arguments.split()[1])
    assert arguments.endswith("--http-address 0.0.0.0 --http-port 81")
    assert {'name: "digits"', 'backend: "python"'} <= set(config)
    assert "count: 2" in config[-1]
    model = (repository / "digits" / "1" / "model.py").read_text()
    compile(model, "model.py", "exec")
    assert "from packed import PackedPredictor" in model


def test_vllm_gets_the_directory_of_the_model(tmp_path: Path) -> None:
    program = install(tmp_path, "vllm")
    module = tmp_path / "vllm" / "entrypoints" / "openai" / "api_server.py"
    module.parent.mkdir(parents=True)
    module.write_text("import json, sys; print(json.dumps(sys.argv[1:]))")
    # In the place of the package, whose path the adapter gives to what it starts.
    (tmp_path / "written" / "server" / "vllm").symlink_to(tmp_path / "vllm")
    output = subprocess.check_output(
        [program, "--port", "81"], env={**os.environ, "MODEL_NAME": "chat"}, text=True
    )
    words = json.loads(output)
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options == {
        "--model": str(tmp_path / "predictor" / "model"),
        "--served-model-name": "chat",
        "--host": "0.0.0.0",
        "--port": "81",
    }
