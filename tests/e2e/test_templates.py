"""Every template of ``danlu init`` builds, and its purpose works in the image."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from danlu.convert.template import list_templates
from tests.e2e.conftest import Project
from tests.fakes.conda import CondaFile, index_channel, write_package
from tests.sources.test_git import git

pytestmark = pytest.mark.real

#: A step of LoRA on a model with random weights, so that nothing is downloaded.
FINETUNE = """
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
sizes = dict(n_embd=16, n_layer=1, n_head=2, vocab_size=64, n_positions=16)
model = get_peft_model(GPT2LMHeadModel(GPT2Config(**sizes)), LoraConfig(target_modules=["c_attn"]))
rows = [{"input_ids": list(range(8)), "labels": list(range(8))}] * 8
options = TrainingArguments("/tmp/o", max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True)
before = [p.clone() for p in model.parameters() if p.requires_grad]
steps = Trainer(model, options, train_dataset=Dataset.from_list(rows)).train().global_step
after = [p for p in model.parameters() if p.requires_grad]
print("steps", steps, any(not torch.equal(x, y) for x, y in zip(before, after)))
"""

ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) + dist.get_rank()
dist.all_reduce(total)
if dist.get_rank() == 0: print("sum", total.item())
dist.destroy_process_group()
"""

PROGRAMS = {
    "codex": (
        "codex --version | cut -d' ' -f1; node -e 'console.log(6 * 7)'; uv --version | cut -c1-2",
        "codex-cli\n42\nuv",
    ),
    "conda": (
        "python -c 'import sys; print(sys.base_prefix)'; pip --version | cut -d' ' -f4",
        "/opt/conda\n/opt/conda/lib/python3.11/site-packages/pip",
    ),
    "distributed-training": (
        "torchrun --standalone --nproc-per-node 2 train.py 2>/dev/null",
        "sum 3.0",
    ),
    "llm-finetuning": ("python finetune.py 2>/dev/null | grep steps", "steps 2 True"),
    "pixi": ("pixi; basename $SHELL", "pixi 0.62\nfish"),
    "r-python": (
        'Rscript -e "library(ggplot2); library(data.table); cat(nrow(iris))"'
        " && python -c 'import pandas; print(pandas.__name__)'",
        "150pandas",
    ),
    "serving": (
        "cd /app && uvicorn main:app --port 8123 --no-access-log & "
        "python -c 'import time, urllib.request as u\n"
        "for _ in range(100):\n"
        '    try: print(u.urlopen("http://127.0.0.1:8123/").read().decode()); break\n'
        "    except OSError: time.sleep(0.1)'; kill %1",
        '"alchemy"',
    ),
    "torch": (
        "python -c 'import torch, transformers, jupyterlab; print(torch.ones(2).sum().item())'",
        "2.0",
    ),
    "uv": (
        "uv venv -q /tmp/v && uv --version | cut -d' ' -f1 && basename $SHELL",
        "uv\nfish",
    ),
    "vision": (
        "python -c 'import cv2, skimage, numpy as n;"
        " print(cv2.cvtColor(n.zeros((2, 3, 3), n.uint8), cv2.COLOR_BGR2GRAY).shape)'",
        "(2, 3)",
    ),
}


#: The others take long.
FAST = ("serving",)

CASES = [
    pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in sorted(PROGRAMS)
]


@pytest.fixture
def channel_settings(python_channel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a channel with Python, pip and a program named pixi that of the user's ``.condarc``."""
    channel = tmp_path / "channel"
    shutil.copytree(python_channel, channel)
    program = CondaFile(b"#!/bin/sh\necho pixi 0.62\n", 0o755)
    write_package(channel, "pixi", "0.62", files={"bin/pixi": program})
    index_channel(channel)
    settings = tmp_path / "condarc"
    settings.write_text(f"channels: ['{channel}']\n")
    monkeypatch.setenv("CONDARC", str(settings))


def test_every_template_has_a_program() -> None:
    assert sorted(PROGRAMS) == sorted(list_templates())


@pytest.mark.parametrize("name", CASES)
def test_a_template_builds_and_works(
    request: pytest.FixtureRequest, project: Project, name: str
) -> None:
    if name in ("conda", "pixi"):
        request.getfixturevalue("channel_settings")
    (project.directory / "main.py").write_text(
        'import fastapi\napp = fastapi.FastAPI()\n@app.get("/")\ndef word(): return "alchemy"\n'
    )
    (project.directory / "train.py").write_text(ALL_REDUCE)
    (project.directory / "finetune.py").write_text(FINETUNE)
    project("init", "--template", name)
    script, printed = PROGRAMS[name]
    assert project.run("bash", "-c", script) == printed


def test_a_teams_template_of_a_git_repository_builds_and_runs(
    project: Project, tmp_path: Path
) -> None:
    template = tmp_path / "templates/shell"
    template.mkdir(parents=True)
    (template / "build.envd").write_text('def build():\n    base(os="debian12")\n')
    (template / "word.sh").write_text("echo elixir\n")
    git(template.parent, "init", "-q")
    git(template.parent, "add", ".")
    git(template.parent, "commit", "-qm", "a template")
    output = project("init", "--template", f"{template.parent.as_uri()}#:shell").stderr
    commit = git(template.parent, "rev-parse", "HEAD")
    assert f"wrote build.envd, word.sh from {template.parent.as_uri()}#{commit}:shell" in output
    assert project.run("sh", "word.sh") == "elixir"
