"""The configuration of pip and uv is read as pip and uv read it, or refused with its file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from danlu.errors import UsageError
from danlu.sandbox.machine_settings import MACHINE_SETTINGS
from danlu.sandbox.pip_uv_config import TRUE_VALUES, read_pip_options, read_uv_settings
from danlu.sources.pypi.restrictions import check_settings
from danlu.sources.pypi.uv import find_uv

CASES = json.loads(Path(__file__).with_name("pip_uv_config_cases.json").read_text())


@pytest.fixture(autouse=True)
def no_system_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))


def write_machine(root: Path, files: Mapping[str, str]) -> dict[str, str]:
    """Write files below a home and a project; return an environment with that home."""
    for name, text in files.items():
        path = root / name.replace("~", "home") if "~" in name else root / "team/project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.replace("<byte E9>", "\udce9").encode("utf-8", "surrogateescape"))
    (root / "team/project").mkdir(parents=True, exist_ok=True)
    return {"HOME": str(root / "home"), "XDG_CONFIG_DIRS": str(root / "none"), "LANG": "C.UTF-8"}


def read_as_danlu(root: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the addresses that decide where packages come from; or the refusal."""
    project = root / "team/project"
    try:
        pip, uv = read_pip_options(environ), read_uv_settings(environ, project)
        check_settings(project, environ)
    except UsageError as error:
        return {"refused": f"{error.span or ''} {error.message}"}
    indexes = [f"{index['url']}" for index in uv.get("index", ()) if not index.get("default")]
    indexes += uv.get("extra-index-url", ())
    indexes += [
        f"{index['url']} (default)" for index in uv.get("index", ()) if index.get("default")
    ]
    if "index-url" in uv:
        indexes.append(f"{uv['index-url']} (default)")
    return {"index-url": pip.get("index-url"), "indexes": put_default_last(indexes)}


def put_default_last(indexes: list[str]) -> list[str]:
    """Sort as uv asks the indexes."""
    return sorted(indexes, key=lambda index: index.endswith("(default)"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['reader']}: {case['name']}")
def test_configuration_is_read_as_by_the_program_or_refused(
    tmp_path: Path, case: dict[str, Any]
) -> None:
    environ = write_machine(tmp_path, case.get("files", {})) | case.get("env", {})
    answer, right = read_as_danlu(tmp_path, environ), case["right"]
    if "refused" in right or "warning" in right:  # uv ignores the whole file; nothing is asked
        named = [name for name in (*case.get("files", ()), *environ.values()) if "." in name]
        assert any(Path(name).name in answer.get("refused", "") for name in named), answer
    else:
        assert {name: answer.get(name) for name in right} == right


def test_each_setting_of_uv_is_known(tmp_path: Path) -> None:
    """A uv with more settings needs a decision about them (danlu.sandbox.machine_settings)."""
    listed = set()
    for table in ("", "[pip]\n"):
        (tmp_path / "uv.toml").write_text(f"{table}unknown = 1\n")
        listed.update(re.findall(r"`([\w-]+)`", ask_uv(tmp_path, {})["messages"]))
    known = {name for setting in MACHINE_SETTINGS for name in setting.uv}
    assert listed - {"pip", "unknown"} == known


def test_refusal_does_not_show_the_text_of_the_file(tmp_path: Path) -> None:
    secret = "index-url = https://me:secret@a.test/ x\n"
    for name, text in (
        ("~/.config/pip/pip.conf", secret),
        ("uv.toml", secret),
        ("uv.toml", 'prerelease = "https://me:secret@a.test/"'),
        ("pyproject.toml", '[tool.uv]\nindex-url = "https://me:secret@a.test/"\nunknown = 1'),
    ):
        answer = read_as_danlu(tmp_path, write_machine(tmp_path, {name: text}))
        assert Path(name).name in answer["refused"]
        assert "secret" not in answer["refused"]
        for path in tmp_path.rglob(Path(name).name):
            path.unlink()


def test_required_version_of_uv_is_for_the_users_own(tmp_path: Path) -> None:
    environ = write_machine(tmp_path, {"uv.toml": 'required-version = "==0.4.0"\n'})
    assert ask_uv(tmp_path / "team/project", environ)["refused"]
    assert "refused" not in read_as_danlu(tmp_path, environ)


def ask_uv(directory: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the addresses that uv would use in a directory, or its refusal."""
    command = [str(find_uv()), "pip", "compile", "--offline", "--show-settings", "-"]
    inherited = {"PATH": os.environ["PATH"], "NO_COLOR": "1"}
    done = subprocess.run(
        command,
        cwd=directory,
        env={**inherited, **environ},
        input="",
        capture_output=True,
        text=True,
    )
    if done.returncode or "warning: Failed to parse" in done.stderr:
        return {"refused": True, "messages": done.stderr}
    text = done.stdout.partition("index_locations: ")[2].partition("flat_index: [")[0]
    found = re.findall(r'given: Some\(\s*"([^"]*)",\s*\).*?default: (true|false)', text, re.DOTALL)
    indexes = [f"{url} (default)" if flag == "true" else url for url, flag in found]
    return {"indexes": put_default_last(indexes)}


class PipOptions:
    """A process with pip's own reader of its configuration."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, environ: Mapping[str, str]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(dict(environ)) + "\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer


@pytest.fixture(scope="module")
def pip() -> Iterator[PipOptions]:
    program = [sys.executable, str(Path(__file__).with_name("pip_options.py"))]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield PipOptions(process)
        assert process.stdin is not None
        process.stdin.close()


PIP_LINES = st.one_of(
    st.sampled_from(
        [
            *("[global]", "[install]", "[list]", "[DEFAULT]", "[Global]", " [global]", "[global"),
            *(
                "",
                "# note",
                "; note",
                "  indented",
                "  # note",
                "no value",
                "=",
                "a b = c",
                "\ufeff",
            ),
            *("index-url", "index-url:https://c.test", "%s = 1", "[global] # note"),
        ]
    ),
    st.builds(
        "{}{}{}{}".format,
        st.sampled_from(
            [
                *(
                    "index-url",
                    "index_url",
                    "INDEX-URL",
                    "--index-url",
                    "--INDEX_URL",
                    " index-url",
                ),
                *("extra-index-url", "find_links", "trusted-host", "no-index", "pre", "timeout"),
                *("default-timeout", "find-links", "no_index"),
            ]
        ),
        st.sampled_from([" = ", "=", ": ", ":", " ", " =", "\t=\t"]),
        st.sampled_from(
            [
                *(
                    "https://a.test/ # note",
                    "https://u:p%40@b.test/",
                    "true",
                    "no",
                    "1",
                    "0",
                    "off",
                ),
                *("", "a b", "Yes", "https://é.test", "3", "two", "T", "${HOME}", "%(home)s"),
            ]
        ),
        st.sampled_from(["", " ", " ; note"]),
    ),
)
PIP_FILES = ("home/.config/pip/pip.conf", "home/.pip/pip.conf", "named.conf")


def compare_with_pip(pip: PipOptions, files: list[list[str]], variables: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        environ = write_machine(root, {}) | variables
        for place, lines in zip(PIP_FILES, files, strict=True):
            if lines:
                (root / place).parent.mkdir(parents=True, exist_ok=True)
                (root / place).write_text("\n".join(lines) + "\n", encoding="utf-8")
        if files[2]:
            environ["PIP_CONFIG_FILE"] = str(root / "named.conf")
        answer = pip.ask(environ)
        if answer.get("refused") and re.search(r"option --?timeout|timeout", answer["refused"]):
            return  # uv reports it when it gets the value
        try:
            # pip's site file is that of its own process, which is not this one.
            options: dict[str, str] | None = read_pip_options(
                {**environ, "VIRTUAL_ENV": str(root / "none")}
            )
        except UsageError:
            options = None
        assert (options is None) == ("refused" in answer), answer
        if options is None:
            return
        for option in ("extra-index-url", "find-links", "trusted-host"):
            assert answer[option] == options.get(option, "").split()
        for flag in ("no-index", "pre"):
            assert bool(answer[flag]) == (options.get(flag, "").lower() in TRUE_VALUES)
        if options.get("index-url"):
            assert answer["index-url"] == options["index-url"]
        else:
            assert "pypi" in answer["index-url"]


FILE = st.lists(PIP_LINES, max_size=5)
HEADED_FILE = FILE.map(lambda lines: ["[global]", *lines] if lines else lines)
PIP_INPUTS = (
    st.lists(st.one_of(FILE, HEADED_FILE), min_size=3, max_size=3),
    st.dictionaries(
        st.sampled_from(["PIP_INDEX_URL", "PIP_NO_INDEX", "PIP_PRE", "PIP_EXTRA_INDEX_URL"]),
        st.sampled_from(["", "1", "no", "https://v.test/ b"]),
        max_size=2,
    ),
)
RELAXED = settings(suppress_health_check=list(HealthCheck), deadline=None)
QUICK = settings(RELAXED, max_examples=25)
SLOW = settings(RELAXED, max_examples=2000)


@QUICK
@given(*PIP_INPUTS)
def test_options_are_those_of_pip(
    pip: PipOptions, files: list[list[str]], variables: dict[str, str]
) -> None:
    compare_with_pip(pip, files, variables)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(600)
@SLOW
@given(*PIP_INPUTS)
def test_many_options_are_those_of_pip(
    pip: PipOptions, files: list[list[str]], variables: dict[str, str]
) -> None:
    compare_with_pip(pip, files, variables)


UV_LINES = st.sampled_from(
    [
        *('index-url = "https://a.test/"', 'extra-index-url = ["https://b.test/"]', "unknown = 1"),
        *('index = [{ url = "https://c.test/" }]', "no-index = false", "offline = true", "strict="),
        *('index = [{ url = "https://d.test/", explicit = true }]', "only-binary = [':all:']"),
        *('index = [{ url = "https://e.test/", default = true }]', "link-mode = 'copy'", "# note"),
        *('index = [{ name = "f", url = "https://f.test/", explicit = true }]', "a = [", "é = 1"),
        *("sources = {}", "[pip]", 'pip = { index-url = "https://g.test/" }', "", "\ufeff"),
        *('"index-url" = "https://h.test/"', "index.x = 1", "no-header = true", "pip.unknown = 1"),
    ]
)
UV_FILES = ("~/.config/uv/uv.toml", "uv.toml", "pyproject.toml", "../pyproject.toml")
UV_INPUTS = st.dictionaries(st.sampled_from(UV_FILES), st.lists(UV_LINES, max_size=3))


def compare_with_uv(files: dict[str, list[str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        texts = {
            file: "\n".join(
                line.replace("[pip]", "[tool.uv.pip]") if "pyproject" in file else line
                for line in (["[tool.uv]", *lines] if "pyproject" in file else lines)
            )
            for file, lines in files.items()
        }
        environ = write_machine(root, texts)
        answer, right = read_as_danlu(root, environ), ask_uv(root / "team/project", environ)
        if "refused" in right:
            assert "refused" in answer, right
        else:
            assert answer.get("indexes") == right["indexes"], answer


@QUICK
@given(UV_INPUTS)
def test_indexes_are_those_of_uv(files: dict[str, list[str]]) -> None:
    compare_with_uv(files)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(900)
@SLOW
@given(UV_INPUTS)
def test_many_indexes_are_those_of_uv(files: dict[str, list[str]]) -> None:
    compare_with_uv(files)
