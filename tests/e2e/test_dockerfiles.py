"""Dockerfiles: what danlu builds of the converted file is what the Dockerfile's own tool builds.

The base of all is a static busybox with bash, which ``run()`` needs.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.convert.dockerfiles import CASES, write_case
from tests.e2e.conftest import Project
from tests.engines import Engine, docker_daemon, missing

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.needs("busybox", "root")]

BASE = "local/busybox:1"


def write_base(archive: Path, directory: Path) -> None:
    """Write an image archive, as ``docker save`` does."""
    bin = directory / "bin"
    bin.mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "", bin / "busybox")
    for name in subprocess.check_output(["busybox", "--list"], text=True).split():
        if name != "busybox":
            (bin / name).symlink_to("busybox")
    (bin / "bash").unlink(missing_ok=True)
    libraries = subprocess.check_output(["ldd", "/bin/bash"], text=True).split()
    for file in ["/bin/bash", *(word for word in libraries if word.startswith("/"))]:
        target = directory / file[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    (directory / "etc").mkdir()
    (directory / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (directory / "tmp").mkdir(mode=0o1777)
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(directory, arcname=".")
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [BASE], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        for name, content in (
            ("config.json", json.dumps(config).encode()),
            ("layer.tar", layer.getvalue()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = tmp_path_factory.mktemp("base") / "base.tar"
    write_base(archive, archive.with_name("tree"))
    return archive


def read_tree(archive: Path) -> dict[str, tuple[str, int, str]]:
    """Return type and mode of files, and content, without what either engine adds itself."""
    added = ("etc/", "dev", "proc", "sys", "run", "tmp", "bin", "lib", ".dockerenv", "usr/lib")
    entries = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.removeprefix("./").rstrip("/")
            if name in ("", ".", "etc", "home", "home/envd", "workspace") or name.startswith(added):
                continue
            file = tar.extractfile(member) if member.isreg() else None
            content = file.read().decode() if file else member.linkname
            entries[name] = (member.type.decode(), member.mode & 0o7777, content)
    return entries


def convert(project: Project) -> bool:
    """Convert the Dockerfile; return False if something is listed as not done."""
    return project("init", "--from", "Dockerfile", check=False).returncode == 0


def build_tree(project: Project) -> dict[str, tuple[str, int, str]]:
    archive = project.directory.with_name("danlu.tar")
    project("build", "-o", f"type=tar,dest={archive}")
    return read_tree(archive)


@pytest.mark.parametrize(
    "case", [case for case in CASES if "files" in case["right"]], ids=lambda case: case["name"]
)
def test_converted_dockerfile_builds_the_files_of_buildkit(
    project: Project, base: Path, case: dict[str, Any]
) -> None:
    project("image", "load", str(base))
    write_case(case, project.directory, base=BASE)
    if "args" in case or not convert(project):
        pytest.skip("the conversion lists what it does not do")
    tree = build_tree(project)
    for name, content in case["right"]["files"].items():
        assert tree[name][2] == content


SNIPPETS = """\
ENV A=1 B="x y"
ENV A=$A-2
ENV PATH=/opt/tool:$PATH
ARG V=1.0
ARG W='$V'
WORKDIR /w
WORKDIR sub
COPY a /c/
COPY d /c
COPY d/ e/
COPY a b /c/
COPY *.txt /t/
COPY --from=0 /stage/. /s/
COPY --from=one /stage/x y
RUN echo "$A $B $V $W $PATH" >> log
RUN ["sh", "-c", "echo $0 >> log", "$A"]
RUN false; echo after >> /log
RUN mkdir -p /m && echo m > /m/m && chmod 640 /m/m
RUN rm -rf /c
RUN echo 'a \\
   b' >> /log
RUN for i in 1 2; do \\
      echo $i-${V:-none}; \\
    done >> log
RUN A=own; echo $A >> /log && ln -sf log /link
RUN tool > /tooled 2>&1 || true
SHELL ["/bin/bash", "-c"]
RUN [[ $A == 1* ]] && echo yes >> /log || echo no >> /log
""".splitlines()


def make_dockerfile(chance: random.Random) -> str:
    """Return a Dockerfile of instructions in any order."""
    instructions = [""]
    for line in SNIPPETS:
        if instructions[-1].endswith("\\"):
            instructions[-1] += f"\n{line}"
        else:
            instructions.append(line)
    body = chance.sample(instructions[1:], 12)
    one = "ARG N=stage\nRUN mkdir /$N && echo x > /$N/x && mkdir /opt && echo 'echo t' > /opt/t"
    return (
        f"FROM {BASE} AS one\n{one}\nFROM {BASE}\nENV A=0\n"
        + "\n".join(body)
        + "\nRUN pwd >> /log\n"
    )


@pytest.fixture(scope="module")
def docker(base: Path) -> Iterator[Engine]:
    if reason := missing("docker"):
        pytest.skip(reason)
    with docker_daemon() as engine:
        engine.load(base)
        yield engine


@pytest.mark.parametrize("seed", range(12))
def test_random_dockerfile_builds_the_same_files(
    project: Project, base: Path, docker: Engine, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    context = project.directory
    for name in ("a", "b", "d/x", "d/y/z", "one.txt", "two.txt"):
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text(name)
    (context / "Dockerfile").write_text(make_dockerfile(chance))
    monkeypatch.setenv("DOCKER_BUILDKIT", "0")
    docker("build", "-q", "--network=none", "-t", f"test:{seed}", str(context))
    container = docker("create", f"test:{seed}", "x").strip()
    exported = context.with_name("docker.tar")
    docker("export", "-o", str(exported), container)
    project("image", "load", str(base))
    report = project("init", "--from", "Dockerfile", check=False)
    assert report.returncode in (0, 1), report.stderr
    omitted = report.stderr.partition("# Skipped")[2].partition("\nNext")[0]
    assert omitted.count("(line ") <= 1, omitted  # at most the last WORKDIR
    assert build_tree(project) == read_tree(exported), (context / "Dockerfile").read_text()
