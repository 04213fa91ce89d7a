"""Requirements files are read as pip reads them, or refused; never otherwise."""

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

from danlu.environment.types import PythonPackages
from danlu.errors import UsageError
from danlu.resolve.python.requirements import collect_requirements
from danlu.sources.pypi.indexes import read_index_settings
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.requirements import (
    ANY_FORMAT,
    FORMAT_OPTIONS,
    check_constraint,
    parse_reference,
    read_requirements,
)

CASES = [
    case
    for case in json.loads(Path(__file__).with_name("requirements_cases.json").read_text())
    if not case.get("resolve")  # tests.resolve.test_requirements_as_pip
]
HERE = PlatformTarget(".".join(map(str, sys.version_info[:3])), "glibc 2.36")
DECLARED = [PythonPackages(requirements="requirements.txt")]


def write_files(directory: Path, files: Mapping[str, Any]) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, dict):
            ((encoding, text),) = text.items()
            path.write_bytes(b"\xff\xfe" + text.encode(encoding.split()[0]))
        else:
            text = "" if text == "@wheel" else text.replace("<byte E9>", "\udce9")
            path.write_bytes(text.encode("utf-8", "surrogateescape"))


def describe_declared(directory: Path) -> dict[str, Any]:
    """Return what danlu passes on, in the words of the cases, or the refusal."""
    try:
        found = collect_requirements(DECLARED, directory, HERE)
        indexes = read_index_settings(None, DECLARED, directory)
    except UsageError as error:
        return {"refused": error.message, "line": error.span and error.span.line}
    hashes = {
        name: " hashes=" + ",".join(f"sha256:{digest[:4]}…" for digest in sorted(digests))
        for name, digests in found.hashes.items()
    }
    for name, file in found.files.items():
        hashes[name] = "#" + file.hashes[0].replace(":", "=")
    marked = [(line.text, " [constraint]") for line in found.constraints]
    marked += [(line.text, "") for line in found.lines]
    lines = [text + mark + hashes.get(re.split(r"\W", text)[0], "") for text, mark in marked]
    for source in found.sources:
        place = source.reference
        url = place.path.as_uri() if place.path else f"git+{place.location}@{place.reference}"
        lines.append(f"{place.name} @ {url}".strip())
    return {
        "requirements": sorted(line.replace(directory.as_uri(), "file://$PWD") for line in lines),
        "options": {
            "index": [index for index in (indexes.default, *indexes.extra) if index],
            "no_index": indexes.no_index,
            "all_releases": [":all:"] * indexes.prereleases,
            "trusted": [host.partition(":")[0] for host in indexes.trusted],
        },
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_file_is_read_as_by_pip_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]
) -> None:
    for name, value in case.get("env", {}).items():
        monkeypatch.setenv(name, value)
    write_files(tmp_path, case["files"])
    answer, right = describe_declared(tmp_path), case["right"]
    assert "refused" not in answer or answer["line"], "a refusal has the line"
    if case.get("refused_here"):
        assert case["refused_here"] in answer.get("refused", ""), answer
    elif "refused" in right:
        assert "refused" in answer, answer
    else:
        listed = [] if right.get("installs") == [] else right["requirements"]
        with_hash = {"a"} if "hash only in constraint" in case["name"] else set()
        expected = [
            re.sub(r"==[\d.]+ @", " @", text)
            + (" hashes=sha256:aaaa…" if text in with_hash else "")
            for text in listed
        ]
        assert answer.get("requirements") == sorted(expected), answer
        for name, value in right.get("options", {}).items():
            assert answer["options"][name] == value


class PipReader:
    """A process with pip's own reader of requirements files."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, directory: Path, environ: Mapping[str, str]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"directory": str(directory), "environ": dict(environ)}) + "\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer


@pytest.fixture(scope="module")
def pip() -> Iterator[PipReader]:
    program = [sys.executable, str(Path(__file__).with_name("pip_requirements.py"))]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield PipReader(process)
        assert process.stdin is not None
        process.stdin.close()


def read_as_danlu(directory: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what danlu reads, in the form of :mod:`tests.sources.pip_requirements`."""
    requirements, formats = [], ANY_FORMAT
    try:
        collect_requirements(DECLARED, directory, HERE)  # refuses what it cannot build
    except UsageError as error:
        return {"refused": error.message}
    for entry in read_requirements(directory / "requirements.txt", directory, environ):
        if entry.option in FORMAT_OPTIONS:
            formats = formats.with_option(entry.option, entry.value)
        if entry.option not in ("", "--editable"):
            continue
        if entry.constraint:
            check_constraint(entry)
        place = parse_reference(entry.value, entry.base)
        requirements.append(
            {
                "absent": bool(place and place.path and not place.path.exists()),
                "url": "" if place is None else place.path.as_uri() if place.path else "URL",
                "name": "" if place is None else place.name.lower(),
                "reference": "" if place is None else place.reference,
                "subdirectory": "" if place is None else place.subdirectory,
                "link_hash": place.hashes[0] if place and place.hashes else "",
                "constraint": entry.constraint,
                "editable": entry.option == "--editable",
                "hashes": sorted(entry.hashes),
            }
        )
    indexes = read_index_settings(None, DECLARED, directory, environ)
    return {
        "requirements": requirements,
        "indexes": [indexes.default, *indexes.extra],
        "find_links": list(indexes.find_links),
        "no_index": indexes.no_index,
        "pre": indexes.prereleases,
        "formats": [sorted(formats.no_binary), sorted(formats.only_binary)],
    }


def compare(pip: PipReader, files: Mapping[str, str], environ: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(os.path.realpath(name))
        write_files(directory, {"requirements.txt": "", "p/setup.py": "", "s/p/setup.py": ""})
        write_files(directory, {"a-1.0-py3-none-any.whl": "", "s/w/x.txt": "", "w2/x.txt": ""})
        write_files(directory, files)
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in environ.items():
                patch.setenv(variable, value)
            answer = read_as_danlu(directory, environ)
        right = pip.ask(directory, environ)
        if "refused" in answer:
            return  # by name
        if any(entry.pop("absent") for entry in answer["requirements"]):
            return  # not refused if its marker is false
        assert "refused" not in right, (files, right, answer)
        assert len(answer["requirements"]) == len(right["requirements"]), (files, right, answer)
        for ours, theirs in zip(answer["requirements"], right["requirements"], strict=True):
            check_requirement(ours, theirs)
        if not right["no_index"]:
            default = answer["indexes"][0] or "https://default.test/"
            expected = [default, *answer["indexes"][1:]]
            assert expected == list(dict.fromkeys(right["indexes"])), (files, right, answer)
        links = [to_uri(link, directory) for link in right["find_links"]]
        assert answer["find_links"] == list(dict.fromkeys(links)), (files, right, answer)
        for option in ("no_index", "pre", "formats"):
            assert answer[option] == right[option], (files, right, answer)


def to_uri(link: str, directory: Path) -> str:
    if "://" in link:
        return link
    return Path(os.path.normpath(directory / link)).as_uri()


def check_requirement(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    both = (ours, theirs)
    assert [ours["constraint"], ours["editable"]] == [theirs["constraint"], theirs["editable"]], (
        both
    )
    assert ours["hashes"] == sorted(theirs["hashes"]), both
    assert bool(ours["url"]) == bool(theirs["url"]), both
    if not ours["url"]:
        return
    assert ours["subdirectory"] == theirs["subdirectory"], both
    if not theirs["url"].startswith("git+"):
        assert ours["link_hash"] == theirs["link_hash"].lower(), both
    if theirs["url"].startswith("file:") and ours["url"] != "URL":
        assert ours["url"] == theirs["url"], both
    if ours["name"]:
        assert ours["name"] == theirs["name"], both
    if theirs["url"].startswith("git+"):
        path = theirs["url"].partition("://")[2].partition("/")[2]
        assert ours["reference"] == (path.rpartition("@")[2] if "@" in path else ""), both


HASH = "--hash=sha256:" + "ab" * 32
PIECES = st.sampled_from(
    [
        *("a", "b==1.0", "a>=1 ; python_version > '3'", "a;", "a ; os_name == 'nt'", "A[x]==1.0"),
        *(
            "./p",
            "p",
            "./p[x]",
            "p/",
            "./p ; os_name == 'nt'",
            "./none",
            "./a-1.0-py3-none-any.whl",
        ),
        *("a @ https://h.test/a-1.0-py3-none-any.whl", "a@file:///nowhere/a-1.0.tar.gz"),
        *("https://h.test/a-1.0-py3-none-any.whl#sha256=" + "CD" * 32, "https://h.test/b-1.zip"),
        *("https://h.test/a-1.tar.gz#md5=00&subdirectory=x", "https://h.test/a.tar.gz#egg=a"),
        *("git+https://h.test/x/y.git@feature/z#egg=foo", "foo @ git+ssh://git@h.test/x@v1"),
        *("git+https://h.test/x", "foo @ git+https://u:p@h.test/x/y@main#subdirectory=s/t"),
        *("-e ./p", "-e p", "-e git+https://h.test/x#egg=q", "-e ./p[x,y]", "--editable=./p", "-e"),
        *("-r r.txt", "-c r.txt", "-r s/r.txt", "-cr.txt", "--requirement s/r.txt", "--req r.txt"),
        *(
            "-i https://i.test/s",
            "--index-url=https://j.test/s",
            "--extra-index-url https://k.test",
        ),
        *(
            "--no-index",
            "--pre",
            "--find-links w",
            "-f w2",
            "--find-links=./none",
            "-f https://f.test",
        ),
        *(
            "--no-binary a",
            "--only-binary=:all:",
            "--no-binary :none:",
            "--prefer-binary",
            "--unknown",
        ),
        *(HASH, f" {HASH}", "--hash sha384:00", "--trusted-host h.test", "--require-hashes"),
        *(
            "# note",
            " # note",
            "a # note",
            "a#note",
            "#",
            "\\",
            " \\",
            "\\\n",
            "\n",
            "\f",
            "\u2028",
        ),
        *(
            "${NAME}",
            "${UNSET}",
            "$NAME",
            "${name}",
            ";",
            "; ",
            "'",
            '"',
            "\t",
            " ",
            "  ",
            "@",
            "=",
        ),
        *("--config-settings=a=b", "-C a=b", "-- a", "--", "-x", "--no", "é", "a b", "a, b", "[x]"),
    ]
)
GLUE = st.sampled_from(["", " ", "\n", "\n", "\n", "\n", " \\\n", "\\\n", "\t"])
TEXT = st.lists(st.tuples(PIECES, GLUE), max_size=7).map(
    lambda parts: "".join(piece + glue for piece, glue in parts)
)
FILES = st.fixed_dictionaries(
    {"requirements.txt": TEXT},
    optional={"r.txt": TEXT, "s/r.txt": TEXT},
)
ENVIRON = st.dictionaries(
    st.just("NAME"), st.sampled_from(["a", "a # b", "${NAME}", "-e ./p", "x ; os_name == 'nt'", ""])
)
RELAXED = settings(suppress_health_check=list(HealthCheck), deadline=None)


@settings(RELAXED, max_examples=80)
@given(FILES, ENVIRON)
def test_generated_file_is_read_as_by_pip_or_refused(
    pip: PipReader, files: dict[str, str], environ: dict[str, str]
) -> None:
    compare(pip, files, environ)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(RELAXED, max_examples=5000)
@given(FILES, ENVIRON)
def test_many_generated_files_are_read_as_by_pip_or_refused(
    pip: PipReader, files: dict[str, str], environ: dict[str, str]
) -> None:
    compare(pip, files, environ)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-be", "latin-1"])
def test_marks_and_encoding_lines_are_read_as_by_pip(
    tmp_path: Path, pip: PipReader, encoding: str
) -> None:
    text = "# coding: latin-1\n# é\na\n" if encoding == "latin-1" else "# é\na\n"
    data = text.encode(encoding)
    data = b"\xfe\xff" + data if encoding == "utf-16-be" else data
    (tmp_path / "requirements.txt").write_bytes(data)
    (entry,) = read_requirements(tmp_path / "requirements.txt", tmp_path)
    (theirs,) = pip.ask(tmp_path, {})["requirements"]
    assert entry.value == theirs["name"] == "a"
