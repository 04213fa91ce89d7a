"""The build files of the envd announcement are planned without changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GPU = """
def build():
    base(os="ubuntu20.04", language="python3")
    install.cuda(version="11.2.2", cudnn="8")
    install.python_packages(name=["tensorflow-gpu"])
"""

DESK = """
def build():
    base(os="ubuntu20.04", language="python3")
    install.vscode_extensions([
        "ms-python.python",
    ])
    install.python_packages(name=["numpy"])
    shell("zsh")
    config.jupyter()
"""

LIBRARY = """
def tensorboard(envd_port=6006, envd_dir="/home/envd/logs", host_port=0, host_dir="/tmp"):
    install.python_packages(["tensorboard"])
    runtime.mount(host_path=host_dir, envd_path=envd_dir)
    runtime.daemon(commands=[["tensorboard", "--logdir", envd_dir, "--port", str(envd_port)]])
    runtime.expose(envd_port=envd_port, host_port=host_port, service="tensorboard")
"""

INCLUDED = """
envdlib = include("https://example.org/team/envdlib")

def build():
    base(os="ubuntu20.04", language="python3")
    envdlib.tensorboard(8888)
"""

V1 = """
# syntax=v1

def build():
    base(image="ubuntu:22.04", dev=True)
    install.conda()
    install.python()
    install.python_packages(name=["numpy"])
    shell("fish")
"""


def plan(directory: Path, text: str, **environ: str) -> str:
    (directory / "build.envd").write_text(text)
    variables = {**os.environ, "DANLU_HOME": str(directory / "home"), **environ}
    result = subprocess.run(
        [sys.executable, "-m", "danlu", "plan"],
        cwd=directory,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (GPU, ["nvidia/cuda:11.2.2-cudnn8-runtime-ubuntu20.04", "tensorflow-gpu"]),
        (DESK, ["ubuntu20.04", "ms-python.python", "zsh", "jupyter"]),
        (V1, ["ubuntu:22.04", "2 conda packages", "numpy", "fish"]),
    ],
)
def test_build_file_of_the_announcement_plans(tmp_path: Path, text: str, shown: list[str]) -> None:
    plan_result = plan(tmp_path, text)
    for word in shown:
        assert word in plan_result


def test_included_library_uses_the_git_instead_of_setting(tmp_path: Path) -> None:
    library = tmp_path / "repositories" / "envdlib"
    library.mkdir(parents=True)
    (library / "monitoring.envd").write_text(LIBRARY)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(library)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    config = tmp_path / "gitconfig"
    directory = f"file://{tmp_path}/repositories/"
    config.write_text(f'[url "{directory}"]\n\tinsteadOf = https://example.org/team/\n')
    plan_result = plan(tmp_path, INCLUDED, GIT_CONFIG_GLOBAL=str(config))
    assert "tensorboard" in plan_result
