"""The repository itself: forbidden names, pinned constraints, links, and the set-up script."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

from danlu import __version__
from scripts.names import NameRule, find_names

ROOT = Path(__file__).resolve().parent.parent


def list_tracked_files() -> list[Path]:
    result = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if result.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in result.stdout.split("\0") if name and (ROOT / name).is_file()]


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"scripts/{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_constraints_pin_everything_by_hash() -> None:
    script = load_script("constraints")
    for name, extra in script.FILES.items():
        requirements = script.read_requirements(extra)
        assert script.findings((ROOT / name).read_text(), requirements) == []


def test_constraints_check_reports_errors() -> None:
    script = load_script("constraints")
    text = "click==8.0 \\\n    --hash=sha256:00\nrich==13.9\n--index-url x\n"
    expected = [Requirement("click>=8.1"), Requirement("uv")]
    assert script.findings(text, expected) == [
        "rich: no hash",
        "it contains a URL or an index option",
        "click: 8.0 is not >=8.1",
        "uv: not pinned",
    ]


def test_setup_installs_what_starting_uv_needs() -> None:
    script = load_script("install_packages")
    assert len(re.findall("^[a-z-]+==", script.bootstrap_lines(), re.MULTILINE)) == len(
        script.BOOTSTRAP
    )
    program = (
        "import sys, danlu.sources.pypi.uv, danlu.util.process\n"
        "from importlib.metadata import packages_distributions\n"
        "found = packages_distributions()\n"
        "print(*{name for module in sys.modules for name in found.get(module, ())})"
    )
    used = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    names = {name.lower().replace("_", "-") for name in used.stdout.split()}
    assert names - {"danlu", "setuptools"} <= set(script.BOOTSTRAP)  # its .pth file loads it


def test_no_installer_configuration_is_committed() -> None:
    option = re.compile(r"^\s*(--index-url|--extra-index-url|--find-links|-i )", re.MULTILINE)
    for path in ROOT.glob("*.txt"):
        assert not option.search(path.read_text()), path


def test_scripts_are_executable_and_start_with_bash() -> None:
    names = [
        "scripts/setup.sh",
        "scripts/check.sh",
        "scripts/fresh-root.sh",
        "scripts/test-real.sh",
        ".ci/run",
    ]
    scripts = [ROOT / name for name in names] + sorted(ROOT.glob("examples/*/verify"))
    for script in scripts:
        assert script.read_text().startswith("#!/usr/bin/env bash\n"), script
        assert os.access(script, os.X_OK), script
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_every_example_has_a_verify_script() -> None:
    for example in sorted((ROOT / "examples").iterdir()):
        if example.is_dir():
            assert (example / "verify").is_file(), example


def test_changelog_contains_this_version() -> None:
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


#: An extra of danlu, or its name where an installer takes a name of an index. A path (`.[fmt]`) and
#: a wheel (`danlu-0.1.0….whl`) are installed from files.
INDEX_NAME = re.compile(
    r"\bdanlu\[\w+\](?! @)"
    r"|(?<!never with\n`)(?<!never with `)\b(?:pip|pipx|uv|uvx|conda|mamba)\b[^`\n]*"
    r"\b(?:install|add|run|upgrade)\b(?:[^`\n#]*[ \"'])?danlu(?=[\s\"'`]|$)",
    re.MULTILINE,
)


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("run `pip install danlu`", True),
        ("run `pip install 'danlu[fmt]'`", True),
        ("uv tool install --reinstall danlu\n", True),
        ("requires danlu[sweep]", True),
        ("install it, never with `pip install danlu`", False),
        ("uv tool uninstall danlu", False),
        ("pip install '.[notebook]'  # danlu", False),
        ("pip install danlu-0.1.0-py3-none-any.whl", False),
    ],
)
def test_advice_to_install_from_an_index_is_recognized(text: str, is_found: bool) -> None:
    assert bool(INDEX_NAME.search(text)) == is_found


def test_nothing_advises_to_install_danlu_from_an_index() -> None:
    # danlu is on none: whoever registers the name there would run code on the reader's machine.
    found = []
    for path in list_tracked_files():
        name = str(path.relative_to(ROOT))
        if not name.startswith(("src/", "docs/", "examples/", "scripts/", "README", "CHANGELOG")):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{name}: {match[0]}" for match in INDEX_NAME.finditer(text)]
    assert not found


#: Decisions have headings in docs/architecture/decisions.md; their numbers say nothing to a reader.
DECISION_NUMBER = re.compile(r"\bDESIGN(?:'s)? (?:D\d|§|table)|[( ]D\d+[),]")


def test_no_file_refers_to_decisions_by_number() -> None:
    assert DECISION_NUMBER.findall("one layer each (D4), see DES" + "IGN §7") == [
        "(D4)",
        "DES" + "IGN §",
    ]
    found = []
    for path in list_tracked_files():
        if path.suffix in (".md", ".py", ".sh", ".toml", ".yml", "") and path != Path(__file__):
            text = path.read_text(encoding="utf-8", errors="replace")
            found += [f"{path.name}: {match}" for match in DECISION_NUMBER.findall(text)]
    assert found == []


@pytest.mark.parametrize("page", ["README.md", "README.zh.md", "CONTRIBUTING.md"])
def test_links_of_the_front_pages_exist(page: str) -> None:
    for target in re.findall(r"\]\((?!\w+:)([^)#]+)", (ROOT / page).read_text()):
        assert (ROOT / target).exists(), f"{page}: {target}"


def test_links_of_the_documentation_exist() -> None:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\((?!\w+:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"


def ordinary_user_path(directory: Path) -> str:
    """A PATH with exactly the programs of a minimal system."""
    directory.mkdir()
    for tool in ("apt-get", "awk", "bash", "cat", "cut", "dirname", "grep", "sha256sum"):
        (directory / tool).symlink_to(shutil.which(tool) or tool)
    (directory / "python3").symlink_to(sys.executable)
    (directory / "id").write_text("#!/bin/sh\n[ $1 = -un ] && echo nobody-here || echo 12345\n")
    (directory / "id").chmod(0o755)
    return str(directory)


def test_setup_prints_the_command_for_the_administrator(tmp_path: Path) -> None:
    script = tmp_path / "scripts" / "setup.sh"
    script.parent.mkdir()
    # The script appends the system's directories, where this machine has what must be missing.
    text = (ROOT / "scripts/setup.sh").read_text()
    script.write_text(text.replace(':/usr/sbin:/sbin"', '"'))
    result = subprocess.run(
        [shutil.which("bash") or "bash", str(script)],
        env={"PATH": ordinary_user_path(tmp_path / "bin")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 4, result
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("  apt-get update")]
    for package in ("runc", "uidmap", "git"):
        assert package in line.split()
    assert line.endswith(" nobody-here")
    assert "usermod --add-subuids" in line


def test_every_test_that_the_security_policy_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "SECURITY.md").read_text()))
    assert named
    files = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named <= {name for text in files for name in re.findall(r"def (test_\w+)\(", text)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('if job.kind == "XJob":\n    pass\n', True),
        ('SCALABLE = ("XJob", "YJob")\n', True),
        ('NAMES = {"torch": "XJob", "XJob": 1}\n', True),
        ('match kind:\n    case "XJob" | "b":\n        pass\n', True),
        ("if job.kind != X_JOB:\n    pass\n", True),
        ('print("XJob")\n', False),
        ('"""XJob"""\nkind = "XJob"\n', False),
    ],
)
def test_comparing_the_name_of_a_plugin_is_found(tmp_path: Path, text: str, found: bool) -> None:
    for name in ("home", "registry", "other"):
        (tmp_path / f"{name}.py").write_text(text)
    rule = NameRule("kind", frozenset({"XJob", "X_JOB"}), ("registry.py",), ("home.py",))
    places = {line.partition(":")[0] for line in find_names(tmp_path, (rule,))}
    assert places == ({"other.py"} if found else set())
    always = NameRule("kind", frozenset({"XJob"}), ("registry.py",), ("home.py",), always=True)
    places = {line.partition(":")[0] for line in find_names(tmp_path, (always,))}
    assert places == ({"other.py"} if '"XJob"' in text else set())
