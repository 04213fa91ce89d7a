"""Which files the predictor of a packed model consists of."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.packing.pack import find_named_modules


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "plain.py": "import helper\nclass Plain: ...\n",
        "helper.py": "",
        "package/__init__.py": "",
        "package/predict.py": "from .network import build\nclass Digits: ...\n",
        "package/network.py": "def build(): ...\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_file_brings_the_modules_next_to_it(project: Path) -> None:
    module, name, files = find_named_modules("plain.py:Plain", "--predictor", project, project)
    assert (module, name, sorted(files)) == ("plain", "Plain", ["helper.py", "plain.py"])


def test_a_module_of_a_package_brings_the_package(project: Path) -> None:
    found = find_named_modules("package.predict:Digits", "--predictor", project, project)
    assert found[:2] == ("package.predict", "Digits")
    assert {"package/predict.py", "package/network.py"} <= set(found[2])


def test_a_file_with_relative_imports_is_refused_with_the_name_of_its_module(project: Path) -> None:
    with pytest.raises(UsageError, match="has relative imports") as caught:
        find_named_modules("package/predict.py:Digits", "--predictor", project, project)
    assert caught.value.hint == "name it as a module: package.predict:Digits"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("missing.py:A", "missing.py not found"),
        ("missing:A", "local module missing not found"),
        ("plain.py:1", "invalid --predictor"),
        ("a-b:A", "invalid --predictor"),
    ],
)
def test_invalid_names_are_refused(project: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find_named_modules(text, "--predictor", project, project)
