"""Dockerfiles: each instruction is carried over, or listed with its line, or refused."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from e2b_dockerfile_utils import DockerfileSyntaxError, parse_dockerfile_ast

from danlu.convert import InitReport, init
from danlu.convert.draft import BuildFileDraft
from danlu.environment.types import Environment
from danlu.errors import UsageError
from danlu.lang.functions.config import ImageEntrypoint
from danlu.lang.functions.runtime import EnvironmentVariables
from danlu.lang.functions.steps import CopyStep, RunStep
from danlu.project.project import Project
from tests.convert.dockerfiles import CASES, write_case

SH = ("/bin/sh", "-c")
#: BuildKit's parser, in Go.
dockerfile = pytest.importorskip("dockerfile")


def convert(
    directory: Path, text: str, *, python: bool = False, **settings: str
) -> tuple[InitReport, Environment]:
    (directory / "Dockerfile").write_text(text)
    for name in ("build.py", "build.envd"):
        (directory / name).unlink(missing_ok=True)
    report = init(directory, source=directory / "Dockerfile", python=python)
    values = [f"{name}={value}" for name, value in settings.items()]
    return report, Project.open(directory=directory, settings=values).environment()


def list_runs(environment: Environment) -> list[tuple[str, ...]]:
    return [step.commands for step in environment.steps if isinstance(step, RunStep)]


def list_copies(environment: Environment) -> list[tuple[str, str, str]]:
    steps = [step for step in environment.steps if isinstance(step, CopyStep)]
    return [(step.source, step.target, step.image) for step in steps]


def list_names(environment: Environment) -> list[str]:
    return [name for package in environment.python_packages for name in package.names]


def find_variables(environment: Environment) -> dict[str, str]:
    items = environment.find_all(EnvironmentVariables)
    return {name: value for item in items for name, value in item.values}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_conversion_is_right_or_lists_what_it_is_not(tmp_path: Path, case: dict[str, Any]) -> None:
    """Files of steps are compared by a test that builds them."""
    write_case(case, tmp_path, base="busybox")
    right = case["right"]
    arguments = case.get("args", {})
    if arguments:
        write_case(
            {"files": {".devcontainer/devcontainer.json": _write_devcontainer(arguments)}},
            tmp_path,
            base="",
        )
    source = tmp_path / (".devcontainer" if arguments else "Dockerfile")
    if "refused" in right:
        with pytest.raises(UsageError, match=r"line \d"):
            init(tmp_path, source=source)
        return
    report = init(tmp_path, source=source)
    if report.omitted:
        assert "(line " in report.omitted[-1]
        return
    environment = Project.open(directory=tmp_path).environment()
    variables = dict(item.partition("=")[::2] for item in right.get("Env", ()))
    assert find_variables(environment) == variables
    entrypoint = environment.find(ImageEntrypoint)
    assert list(entrypoint.args if entrypoint else ()) == right.get("Entrypoint", [])


def _write_devcontainer(arguments: dict[str, str]) -> str:
    values = ", ".join(f'"{name}": "{value}"' for name, value in arguments.items())
    build = f'"dockerfile": "../Dockerfile", "context": "..", "args": {{{values}}}'
    return f'{{"build": {{{build}}}}}'


DOCKERFILE = """\
# syntax=docker/dockerfile:1
ARG PY=3.11
FROM python:${PY}-slim AS app
ENV DEBIAN_FRONTEND=noninteractive LANG="C.UTF-8" \\
    PATH=/opt/tool/bin:$PATH
ENV PATH=/opt/other/bin:$PATH
WORKDIR /app
RUN apt-get update && apt-get install -y --no-install-recommends git \\
    # a comment in between
    ffmpeg && \\
    rm -rf /var/lib/apt/lists/*
ARG TORCH=2.4
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt "torch==${TORCH}.*"
COPY . /app
RUN ./configure "a && b" && make -j4; echo done
RUN make install && make check
EXPOSE 8080
HEALTHCHECK CMD true
ENTRYPOINT ["python", "main.py"]
"""


def test_dockerfile_becomes_declarations_and_steps(tmp_path: Path) -> None:
    report, environment = convert(tmp_path, DOCKERFILE)
    assert report.path.name == "build.envd"
    assert environment.base.image == "python:3.11-slim"
    assert environment.system_packages[0].names == ("git", "ffmpeg")
    assert list_names(environment) == ["torch==2.4.*"]
    assert 'requirements="requirements.txt"' in report.text
    assert find_variables(environment) == {"DEBIAN_FRONTEND": "noninteractive", "LANG": "C.UTF-8"}
    (variables,) = environment.find_all(EnvironmentVariables)
    assert variables.path == ("/opt/other/bin", "/opt/tool/bin")
    assert environment.find(ImageEntrypoint) == ImageEntrypoint(("python", "main.py"))
    assert list_copies(environment) == [("requirements.txt", "/app/", ""), (".", "/app", "")]
    script, plain = [step for step in environment.steps if isinstance(step, RunStep)]
    assert (script.shell, plain.shell) == (SH, ())
    assert script.commands == (
        "export TORCH='2.4'",
        "mkdir -p /app && cd /app",
        './configure "a && b" &&',
        "make -j4; echo done",
    )
    assert plain.commands == ("export TORCH='2.4'", "cd /app", "make install", "make check")
    assert [line.rpartition("  (")[2] for line in report.omitted] == [
        "line 18: use runtime.expose())",
        "line 19: no equivalent)",
        "line 7: commands start in the project, at /workspace)",
    ]


def test_arguments_are_parameters(tmp_path: Path) -> None:
    report, environment = convert(tmp_path, DOCKERFILE, PY="3.12", TORCH="2.6")
    assert 'def build(PY="3.11", TORCH="2.4"):' in report.text
    assert environment.base.image == "python:3.12-slim"
    assert list_names(environment) == ["torch==2.6.*"]
    assert list_runs(environment)[1][0] == "export TORCH='2.6'"


@pytest.mark.parametrize(
    ("lines", "values", "reason"),
    [
        ("ARG X=a.b\nENV A=${X%.b}", {"A": "a"}, "the value of X cannot be set"),
        ("ARG X=1\nARG Y=$X-2\nENV A=$Y", {"A": "1-2"}, "the value of Y cannot be set"),
        ("ARG X=1\nENV A=$X\nARG X=2\nENV B=$X", {"A": "1", "B": "2"}, "X cannot be set"),
        ("ARG build=1\nENV A=$build", {"A": "1"}, "the value of build cannot be set"),
        ("ARG X\nENV A=${X-unset}", {"A": "unset"}, "X has no default, and is not set"),
        ("ARG X\nENV A=a$X", {"A": "a"}, "X has no default"),
        ("ENV A=$LD_LIBRARY_PATH", {}, "the base image may set $LD_LIBRARY_PATH"),
        ("ENV A=$PATH", {}, "only directories before the PATH"),
        ("ENV PATH=/bin", {}, "only directories before the PATH"),
    ],
)
def test_variables_that_cannot_be_set_are_listed(
    tmp_path: Path, lines: str, values: dict[str, str], reason: str
) -> None:
    report, environment = convert(tmp_path, f"FROM busybox\n{lines}\n")
    assert find_variables(environment) == values
    assert reason in " ".join(report.omitted)


def test_arguments_end_with_their_stage(tmp_path: Path) -> None:
    _, environment = convert(
        tmp_path,
        "ARG A=1\nFROM busybox AS one\nARG B=2\nRUN make $A $B\n"
        "FROM one\nRUN make $A $B\nARG A\nRUN make $A $B\n",
    )
    exports = [step.commands[:-1] for step in environment.steps if isinstance(step, RunStep)]
    assert exports == [("export B='2'", "cd /"), ("cd /",), ("export A='1'", "cd /")]


def test_commands_see_the_variables_of_their_place(tmp_path: Path) -> None:
    _, environment = convert(
        tmp_path,
        "FROM busybox\nENV A=1 PATH=/a:$PATH\nRUN make\nENV A=2 B=3 PATH=/b:$PATH\nRUN make\n",
    )
    assert list_runs(environment) == [
        ("unset B", "export A=1", 'export PATH="${PATH#/b:}"', "cd /", "make"),
        ("cd /", "make"),
    ]


@pytest.mark.parametrize(
    "script",
    [
        "if true; then apt-get install -y git; fi",
        "apt-get update && apt-get install -y $PACKAGES",
        "pip install .",
        "curl x | sh && (cd /tmp; make)",
        "pip install numpy || true",
        "[ -d /x ] && pip install toml",
        "CMAKE_ARGS=-DX=1 pip install x",
        "pip install --pre numpy",
        "pip install torch --index-url https://example.org/simple",
        "cd sub && pip install -r requirements.txt",
        "pip install -r not-copied.txt",
    ],
)
def test_other_commands_stay_as_they_are(tmp_path: Path, script: str) -> None:
    report, environment = convert(tmp_path, f"FROM python:3.11\nRUN {script}\n")
    ((_, *commands),) = list_runs(environment)
    assert " && ".join(command.removesuffix(" &&") for command in commands) == script
    assert environment.system_packages == environment.python_packages == ()
    assert report.omitted == ()


@pytest.mark.parametrize(
    "other",
    [
        *("RUN pip install .", "RUN python -m venv /x", "ENV PIP_INDEX_URL=https://h/", "USER me"),
        *("ENV X=/usr/lib/python3/dist-packages", 'CMD ["/usr/bin/python3"]', 'SHELL ["x"]'),
        "RUN sed -i s/a/b/ r.txt",
    ],
)
def test_packages_are_not_in_two_places(tmp_path: Path, other: str) -> None:
    _, environment = convert(
        tmp_path, f"FROM python:3.11\nCOPY r.txt /\n{other}\nRUN pip install rich -r r.txt\n"
    )
    assert environment.python_packages == ()


def test_packages_of_apt_are_not_declared_after_its_sources_changed(tmp_path: Path) -> None:
    text = "RUN apt-get update\nRUN apt-get install -y --no-install-recommends git\n"
    _, environment = convert(tmp_path, f"FROM debian:12\n{text}")
    assert environment.system_packages[0].names == ("git",)
    assert list_runs(environment) == [("cd /", "apt-get update")]
    for line in ("RUN curl https://deb.example | bash", "COPY my.list /etc/apt/sources.list.d/"):
        _, environment = convert(tmp_path, f"FROM debian:12\n{line}\n{text}")
        assert environment.system_packages == ()
        assert list_runs(environment)[-1][-2] == "apt-get update", "lists are part of no layer"


def test_packages_that_are_only_recommended_are_listed(tmp_path: Path) -> None:
    report, _ = convert(tmp_path, "FROM debian:12\nRUN apt-get install -y git\n")
    assert "line 2: packages that are only recommended" in report.omitted[0]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("COPY --parents a /x", "--parents: not done"),
        ("COPY --chown=1:1 a /x", "owner and mode"),
        ("ADD https://h/a /x", "use io.http()"),
        ("ADD git@h:a.git /x", "use io.http()"),
        ("ADD a.tar.gz /x", "archives are not unpacked"),
        ("COPY [a-c] /x/", "Docker understands the pattern differently"),
        ("COPY d* /x/", "directories that match keep their names"),
        ("COPY link /x", "is a link"),
        ("COPY --from=s /a /x", "starts from scratch"),
        ("RUN --network=none make", "--network=none: not done"),
        ("RUN --mount=from=s,target=/s make", "--mount=from=s,target=/s: not done"),
        ("RUN --mount=target=. make", "a bind mount: not done"),
        ("RUN --mount=type=cache,target=/c make", "a cache mount: its files stay in the image"),
        ("RUN --mount=type=tmpfs,target=/c make", "type=tmpfs,target=/c: not done"),
        ("USER app\nRUN make", "runs as root, not as app"),
        ('SHELL ["pwsh", "-c"]\nRUN x', "a command of pwsh: not done"),
        ("RUN <<EOF\n#!/usr/bin/env python3\nEOF", "a script of another program"),
        ("CMD x", "danlu run -- PROGRAM"),
        ("ENV a.b=c", "a.b is not a variable"),
        ("COPY a /proc/x", "belongs to the kernel"),
        ("RUN --mount=type=secret x", "type=secret: not done"),
        ("EXPOSE 80", "use runtime.expose()"),
        ("VOLUME /x", "use runtime.mount()"),
        *((line, "no equivalent") for line in ("LABEL a=b", "ONBUILD RUN x", "STOPSIGNAL 9")),
    ],
)
def test_what_is_not_done_is_listed_with_its_line(tmp_path: Path, lines: str, reason: str) -> None:
    (tmp_path / "dd").mkdir()
    (tmp_path / "link").symlink_to("dd")
    text = f"FROM scratch AS s\nFROM busybox\n{lines}\n"
    report, _ = convert(tmp_path, text)
    number = 3 + lines.count("\n") - ("<<EOF" in lines) * 2
    assert any(f"(line {number}: " in line and reason in line for line in report.omitted)


def test_ignore_file_of_the_dockerfile_is_listed(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile.dockerignore").write_text("x")
    report, _ = convert(tmp_path, "FROM busybox\n")
    assert report.omitted[0].startswith("Dockerfile.dockerignore")


def test_secrets_and_the_agent_are_mounted(tmp_path: Path) -> None:
    report, environment = convert(
        tmp_path,
        "FROM busybox\nRUN --mount=type=secret,id=a --mount=type=secret,id=b,target=/b"
        " --mount=type=ssh make\n",
    )
    (step,) = environment.steps
    assert isinstance(step, RunStep)
    assert step.ssh
    assert [(secret.id, secret.target) for secret in step.secrets] == [
        ("a", "/run/secrets/a"),
        ("b", "/b"),
    ]
    assert report.omitted == ()


def test_requirements_of_a_bind_mount_are_installed(tmp_path: Path) -> None:
    report, _ = convert(
        tmp_path,
        "FROM python:3.11\nWORKDIR /w\n"
        "RUN --mount=type=bind,source=deps/r.txt,target=r.txt --mount=type=cache,target=/c"
        " pip install -r r.txt\n",
    )
    assert 'requirements="deps/r.txt"' in report.text


def test_requirements_are_those_of_the_last_copy(tmp_path: Path) -> None:
    lines = ("COPY . /app", "COPY ../a.txt /app/r.txt", "RUN pip install -r /app/r.txt")
    for order, name in ((lines, "a.txt"), ((lines[1], lines[0], lines[2]), "r.txt")):
        report, _ = convert(tmp_path, "\n".join(["FROM python:3.11", *order]) + "\n")
        assert f'requirements="{name}"' in report.text


def test_copies_after_commands_keep_their_place(tmp_path: Path) -> None:
    report, environment = convert(
        tmp_path, "FROM busybox\nCOPY a /x/\nRUN rm -rf /x\nCOPY b /x/\nCOPY <<E /x/\nb\nE\n"
    )
    assert report.path.name == "build.py"
    assert [type(step) for step in environment.steps] == [CopyStep, RunStep, CopyStep, RunStep]
    assert list_runs(environment)[1] == ("mkdir -p /x", "cat > /x/E <<'EOF'\nb\nEOF")
    (tmp_path / "build.py").unlink()
    (tmp_path / "build.envd").write_text("")
    with pytest.raises(UsageError, match=r"build\.envd already exists"):
        init(tmp_path, source=tmp_path / "Dockerfile")


def test_stages_that_a_stage_starts_from_are_part_of_it(tmp_path: Path) -> None:
    report, environment = convert(
        tmp_path,
        "ARG VARIANT=base\n"
        "FROM --platform=$BUILDPLATFORM python:3.11-slim AS Base\n"
        "ENV ONE=1\nWORKDIR /src\nCOPY requirements.txt ./\nRUN make one\n"
        "FROM alpine AS unused\nRUN apk add curl\n"
        "FROM base AS dev\nENV TWO=$ONE\nWORKDIR sub\nRUN pip install -r /src/requirements.txt\n"
        "FROM dev\nRUN make two\n",
    )
    assert environment.base.image == "python:3.11-slim"
    assert 'requirements="requirements.txt"' in report.text
    assert find_variables(environment) == {"ONE": "1", "TWO": "1"}
    assert [commands[-2:] for commands in list_runs(environment)] == [
        ("mkdir -p /src && cd /src", "make one"),
        ("mkdir -p /src/sub && cd /src/sub", "make two"),
    ]
    (note,) = report.notes
    assert note.endswith("does not need the others: unused")


@pytest.mark.parametrize("python", [False, True])
def test_a_stage_that_files_are_copied_from_becomes_a_function(
    tmp_path: Path, python: bool
) -> None:
    report, environment = convert(
        tmp_path,
        "ARG FLAG=-O2\n"
        "FROM debian:12 AS sources\nRUN mkdir /s\n"
        "FROM gcc:14 AS build\nARG FLAG\nENV CC=gcc\n"
        "RUN apt-get install -y --no-install-recommends cmake\n"
        "COPY --from=sources /s /src\nRUN pip install rich\nRUN make $FLAG\n"
        "FROM alpine AS unused\nRUN apk add curl\n"
        "FROM python:3.11\nWORKDIR /app\nCOPY --from=build /src/out/* lib/\n"
        "COPY --from=1 /src/LICENSE .\nCOPY main.py .\n",
        python=python,
        FLAG="-O3",
    )
    name = 'stage_1(FLAG="-O3")'
    assert list(environment.sources) == ["sources", name], "`build` is the environment"
    stage = environment.sources[name]
    assert stage.base.image == "gcc:14"
    assert stage.system_packages[0].names == ("cmake",)
    assert stage.python_packages == (), "files are copied from where pip puts them"
    assert find_variables(stage) == {"CC": "gcc"}
    assert CopyStep("/s", "/src", function="sources") in stage.steps
    assert list_runs(stage) == [
        ("export FLAG='-O3'", "cd /", "pip install rich"),
        ("export FLAG='-O3'", "cd /", "make $FLAG"),
    ]
    assert [
        (step.source, step.target) for step in environment.steps if isinstance(step, CopyStep)
    ] == [
        ("/src/out/*", "/app/lib/"),
        ("/src/LICENSE", "/app/"),
        ("main.py", "/app/"),
    ]
    assert "directories that match keep their names" in report.omitted[0]


def test_files_of_an_image_are_copied_from_it(tmp_path: Path) -> None:
    _, environment = convert(
        tmp_path,
        "ARG UV=0.5\nFROM ghcr.io/astral-sh/uv:$UV AS uv\nFROM python:3.11 AS main\n"
        "COPY --from=uv /uv /uvx /bin/\nCOPY --from=busybox /bin/sh x\nCOPY --from=late /a /b\n"
        "FROM python:3.12 AS late\nRUN make\nFROM main\n",
    )
    assert environment.base.image == "python:3.11"
    assert list_copies(environment) == [
        ("/uv", "/usr/bin/", "ghcr.io/astral-sh/uv:0.5"),
        ("/uvx", "/usr/bin/", "ghcr.io/astral-sh/uv:0.5"),
        ("/bin/sh", "/x", "busybox"),
        ("/a", "/b", "late"),  # a stage is known only below it
    ]


def test_stages_that_copy_from_one_another_end(tmp_path: Path) -> None:
    stages = [f"FROM debian:12 AS s{i}\nRUN make\nCOPY --from=s{i} / /\n" for i in range(20)]
    stages += [f"FROM debian:12 AS t{i}\n" + f"COPY --from=t{i - 1} /x /\n" * 2 for i in range(40)]
    _, environment = convert(tmp_path, "".join(stages))
    assert environment.base.image == "debian:12"
    with pytest.raises(UsageError, match="more than 200 stages"):
        convert(tmp_path, "FROM x\n" * 201)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no FROM"),
        ("RUN x\n", "line 1: RUN before FROM"),
        ("FROM scratch\n", "FROM scratch"),
        ("FROM\n", "line 1: FROM requires"),
        ("FROM a b\n", "line 1: FROM requires"),
        ("FROM a:$X\n", "line 1: the image depends on \\$X"),
        ("FROM a\nENV A=${B\n", "line 2"),
        ("FROM a\nCOPY x\n", "line 2: COPY requires"),
        ("FROM a\nCOPY --from=1 x y\n", "line 2: invalid from"),
        ("FROM a\nRUN <<A\nx\n", "line 2: unterminated heredoc"),
        ("FROM a\nRUN \U0010f000\n", "private plane"),
    ],
)
def test_invalid_dockerfile_is_refused_with_its_line(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        convert(tmp_path, text)


def test_named_stage_is_read(tmp_path: Path) -> None:
    from danlu.convert.dockerfile import read_dockerfile

    path = tmp_path / "Dockerfile"
    path.write_text("FROM a:1 AS a\nRUN make a\nFROM a AS b\nRUN make b\nFROM scratch\n")
    for target, count in (("A", 1), ("1", 2)):
        draft = BuildFileDraft()
        read_dockerfile(path, tmp_path, draft, target=target)
        assert draft.image == "a:1"
        assert len(draft.steps) == count
    for target in ("x", "3"):
        with pytest.raises(UsageError, match=f"has no stage '{target}'"):
            read_dockerfile(path, tmp_path, BuildFileDraft(), target=target)


def test_random_dockerfiles_are_refused_or_become_valid_build_files(tmp_path: Path) -> None:
    chance = random.Random(4)
    (tmp_path / "r.txt").write_text("rich\n")
    valid = 0
    for _ in range(60):
        lines = [chance.choice(MORE_LINES + LINES) for _ in range(chance.randint(1, 9))]
        with suppress(UsageError):
            _, environment = convert(tmp_path, "\n".join(["ARG X=0", "FROM a", *lines]) + "\n")
            valid += environment.base.image.startswith(("a", "b"))
    assert valid > 15


MORE_LINES = r"""
ARG X=1
ARG Y=$X
ARG a-b=${X:-2}
ENV P=$X Q='$X' R=\$X 1=2
ENV PATH=/a:$PATH
RUN echo $X && make "a b" && x
RUN pip install a$X
RUN pip install -r r.txt
COPY r.txt .
COPY $X /a
COPY --from=0 /x* /y/
FROM b AS s0
FROM a:$X
WORKDIR $X/..
USER $X
COPY <<A <<B /x/
COPY ../.. /
ADD "" /dev/x
ENTRYPOINT
SHELL ["/bin/bash", "-c"]
RUN [""]
RUN --mount=type=secret,id=a x
RUN --mount=type=bind,source=r.txt,target=r.txt pip install -r r.txt
RUN --mount= x
""".splitlines()


# -- the parser, compared with BuildKit's

INSTRUCTIONS = {
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL"),
    *("MAINTAINER", "ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
}
LINES = r"""
FROM a
RUN x
RUN x \
  y
# c
\
ENV A=b
ENV A b c
ENV A="b c" D=e
COPY a b
COPY ["a", "b"]
COPY --from=x --link a b
ADD a b
RUN <<E
E
RUN <<-E
	E
 E
RUN cat <<A <<B
A
B
RUN ["a", "b"]
RUN ['a']
CMD a
EXPOSE 1 2
ARG A=1
ARG A=1 B
LABEL a=b
USER a
WORKDIR /a b
SHELL ["a"]
RUN \ x
run y
VOLUME a
STOPSIGNAL a
ENTRYPOINT a
HEALTHCHECK NONE
# escape=`
RUN a `
INSTALL
RUN --mount=type=cache,target=/a --network=none b
COPY <<E /x
COPY <<"E" /x
RUN 0<<E
X
""".splitlines()


def read_with_port(text: str) -> list[tuple[object, ...]] | None:
    try:
        parsed = parse_dockerfile_ast(text)
    except DockerfileSyntaxError:
        return None
    return [
        (
            item.name,
            item.flags,
            # Names and values of ENV, without what is between them.
            [word for number, word in enumerate(item.args) if number % 3 < 2]
            if item.name in ("ENV", "LABEL")
            else item.args,
            [(document.name, document.content) for document in item.heredocs],
            (item.start_line, item.end_line),
        )
        for item in parsed.instructions
    ]


def read_with_go(text: str) -> list[tuple[object, ...]] | None:
    try:
        items = dockerfile.parse_string(text)
    except dockerfile.GoParseError:
        return None
    if any((item.cmd or "").upper() not in INSTRUCTIONS for item in items):
        return None  # BuildKit refuses it after parsing
    return [
        (
            item.cmd.upper(),
            list(item.flags),
            list(item.value),
            [(document.name, document.content) for document in item.heredocs],
            (item.start_line, item.end_line),
        )
        for item in items
    ]


def compare_parsers(count: int, seed: int) -> None:
    chance = random.Random(seed)
    valid = 0
    for _ in range(count):
        lines = [chance.choice(LINES) for _ in range(chance.randint(1, 8))]
        text = "\n".join(["FROM a", *lines]) + "\n"
        found = read_with_port(text)
        assert found == read_with_go(text), text
        valid += found is not None
    assert valid > count / 4


def test_parser_reads_as_buildkit_does() -> None:
    compare_parsers(300, 1)


@pytest.mark.real
@pytest.mark.slow
def test_parser_reads_2000_dockerfiles_as_buildkit_does() -> None:
    compare_parsers(2000, 2)
