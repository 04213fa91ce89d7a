"""Files generated from the table are current, complete and correct."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import danlu
from danlu.lang.build_function import REQUIRED
from danlu.lang.functions import FUNCTIONS, NAMESPACES
from danlu.lang.python_namespace import LANGUAGE
from scripts.reference.build_language import generate_files, render_page

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(generate_files()))
def test_a_generated_file_is_current(name: str) -> None:
    hint = "run: make docs"
    assert (ROOT / name).read_text(encoding="utf-8") == generate_files()[name], hint


def test_the_page_has_every_function_and_argument() -> None:
    text = render_page()
    for function in FUNCTIONS.values():
        assert f"### `{function.name}`" in text
        for parameter in function.parameters:
            assert f"| `{parameter.name}`" in text


def test_python_exports_exactly_the_language() -> None:
    plain = {name for name in FUNCTIONS if "." not in name} - {"include"}
    assert sorted({*plain, *NAMESPACES}) == sorted(LANGUAGE)
    more = {"JobFailed", "attach", "checkpoint_dir", "pack", "report", "sweep", "train"}
    assert set(danlu.__all__) == {*LANGUAGE, *more}


def test_the_stub_and_the_functions_have_the_same_parameters() -> None:
    tree = ast.parse(generate_files()["src/danlu/__init__.pyi"])
    results = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            results[node.name] = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    names = [a.arg for a in (*method.args.args, *method.args.kwonlyargs)]
                    results[f"{node.name[1:].lower()}.{method.name}"] = names
    functions = {name: item for name, item in FUNCTIONS.items() if not item.starlark_only}
    assert results == {name: [p.name for p in f.parameters] for name, f in functions.items()}
    for name, function in functions.items():
        home = getattr(danlu, function.namespace) if function.namespace else danlu
        assert (
            list(inspect.signature(getattr(home, function.short_name)).parameters) == results[name]
        )


def test_every_default_is_a_value_that_its_own_check_accepts() -> None:
    for function in FUNCTIONS.values():
        for parameter in function.parameters:
            if parameter.default is not REQUIRED and parameter.default is not None:
                parameter.type.check(parameter.default)


def test_every_function_declares_something() -> None:
    assert [f.name for f in FUNCTIONS.values() if f.declare is None] == []
    assert {f.name for f in FUNCTIONS.values() if f.runtime_only} == {
        "config.gpu", "config.shm_size", "data.envd", "runtime.command",
        "runtime.daemon", "runtime.expose", "runtime.init", "runtime.mount",
    }  # fmt: skip


@pytest.mark.real
def test_checkers_see_real_types(tmp_path: Path) -> None:
    (tmp_path / "build.py").write_text(
        "from danlu import base, install, run\n"
        "base(os='debian12')\n"
        "install.pyton()\n"
        "install.python(version=3)\n"
        "run(['a'], mount_host=True)\n"
    )
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "", "build.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in checked.stdout.splitlines() if ": error: " in line]
    assert [line.split(":")[1] for line in lines] == ["3", "4"]
    assert 'maybe "python"' in lines[0]
