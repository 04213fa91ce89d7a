"""The report of skipped tests at the end of a run: one line per missing program or service."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.programs import UNPACKAGED, install_command, lacking

TESTS = """
import pytest

@pytest.fixture
def server():
    pytest.skip("no server here")

@pytest.mark.parametrize("number", range(30))
def test_of_a_server(server, number):
    pass

@pytest.mark.skip(reason="no server here")
def test_marked():
    pass

@pytest.mark.skipif(True, reason="needs root")
def test_of_root():
    pass

def test_good():
    pass
"""
MODULE = "import pytest\npytest.skip('needs root', allow_module_level=True)\n"


@pytest.fixture
def run(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest((ROOT / "tests/skip_report.py").read_text(encoding="utf-8"))
    return pytester


def section(text: str) -> list[str]:
    """The lines about skipped tests."""
    result = re.search(r"^-+ (\d+ skipped) -+\n((?:\s*\d+ × .*\n)*)", text, re.MULTILINE)
    assert result is not None, text
    return [result[1], *result[2].splitlines()]


def test_each_reason_is_one_line_with_its_count(run: pytest.Pytester) -> None:
    run.makepyfile(test_one=TESTS, test_two=MODULE)
    result = run.runpytest_inprocess("-p", "no:cacheprovider")
    assert section(result.stdout.str()) == ["33 skipped", "31 × no server here", " 2 × needs root"]
    assert result.stdout.str().count("no server here") == 1


def test_processes_of_xdist_are_counted_together(run: pytest.Pytester) -> None:
    run.makepyfile(test_one=TESTS)
    result = run.runpytest_subprocess("-n", "2", "-p", "no:cacheprovider")
    assert section(result.stdout.str()) == ["32 skipped", "31 × no server here", " 1 × needs root"]


def test_failures_are_still_reported(run: pytest.Pytester) -> None:
    run.makepyfile(test_one=TESTS, test_two="def test_bad():\n    assert 1 == 2\n")
    result = run.runpytest_inprocess("-rfE", "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert len(section(result.stdout.str())) == 3
    result.stdout.fnmatch_lines(["*assert 1 == 2*", "FAILED test_two.py::test_bad*"])


def test_a_run_without_skips_prints_no_skip_report(run: pytest.Pytester) -> None:
    run.makepyfile("def test_good():\n    pass\n")
    assert "skipped" not in run.runpytest_inprocess("-p", "no:cacheprovider").stdout.str()


# -- missing programs can be installed -----------------------------------------------------------

_NEEDS = re.compile(r'(?:mark\.needs|lacking)\((?=")[^)]*\)')
_FUNCTION = r"^find_missing_for_{}\(\) {{$(.*?)^}}$"


def needed_programs() -> list[str]:
    """The programs that tests name in a mark, or ask for in a fixture."""
    result: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        if path != Path(__file__):
            for match in _NEEDS.finditer(path.read_text(encoding="utf-8")):
                result.update(re.findall(r'"([^"]+)"', match[0]))
    return sorted(result - {"root", "tun", *UNPACKAGED})


def test_tests_need_programs() -> None:
    assert {"ompi_info", "docker-registry", "chromium"} <= set(needed_programs())


@pytest.mark.parametrize("program", needed_programs())
def test_the_command_in_the_reason_installs_the_program(program: str) -> None:
    command = install_command(program)
    script, option = command.split()
    text = (ROOT / script).read_text(encoding="utf-8")
    # What the tests of an ordinary user need is part of what all tests need.
    groups = [option.removeprefix("--"), *(["ordinary_user"] if option == "--tests" else [])]
    functions = [re.search(_FUNCTION.format(group), text, re.M | re.S) for group in groups]
    lines = "\n".join(function[1] for function in functions if function)
    assert re.search(rf"\bhas {re.escape(program)}(?= \|\||;| &&).*\bneed \S+", lines)


def test_a_missing_program_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.programs.SYSTEM_PATH", "/nowhere")
    assert lacking("ompi_info") == "ompi_info not found: scripts/setup.sh --tests"
    assert lacking("chromium") == "chromium not found: scripts/setup.sh --notebook"
