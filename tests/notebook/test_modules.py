"""Which files of local modules are sent with a cell."""

from __future__ import annotations

import ast
import importlib.machinery
import site
import socket
import sys
import types
from collections.abc import Mapping
from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.project import local_modules
from danlu.project.local_modules import (
    LocalModules,
    TransferLimit,
    classify_search_path,
    find_imports,
    find_local_modules,
)


def tree(place: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


def find_modules(
    code: str, place: Path, *further: Path, limit: TransferLimit | None = None
) -> LocalModules:
    path = [*map(str, further), *sys.path, ""]
    places = classify_search_path(path, place=place, elsewhere=False)
    return find_local_modules(find_imports(ast.parse(code)), places, limit=limit)


def files(code: str, place: Path, *further: Path) -> list[str]:
    return list(find_modules(code, place, *further).files)


# -- what a text imports --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import a, b.c as d", {"a", "b.c"}),
        ("from a.b import c, d", {"a.b", "a.b.c", "a.b.d"}),
        ("from a import *", {"a"}),
        ("from . import x", {"p.q", "p.q.x"}),
        ("from .x import y", {"p.q.x", "p.q.x.y"}),
        ("from ..x import y", {"p.x", "p.x.y"}),
        ("from .... import y", set()),
        ("def f():\n    if 1:\n        import a", {"a"}),
        ("try:\n    import a\nexcept ImportError:\n    import b", {"a", "b"}),
        ("import importlib\nimportlib.import_module('a.b')", {"importlib", "a.b"}),
        ("import_module('.x', __package__)\n__import__('z')", {"p.q.x", "z"}),
        ("import_module(name)", set()),
    ],
)
def test_all_imports_are_found(code: str, names: set[str]) -> None:
    assert set(find_imports(ast.parse(code), package="p.q")) == names


# -- local or not ---------------------------------------------------------------------------------


def test_imported_modules_are_sent_transitively(tmp_path: Path) -> None:
    path = tree(
        tmp_path,
        {
            "one.py": "import two\n",
            "two.py": "def f():\n    from three import x\n",
            "three.py": "import one\n",
            "other.py": "",
        },
    )
    assert find_modules("import one, json, numpy", path) == LocalModules(
        {f"{name}.py": path / f"{name}.py" for name in ("one", "three", "two")},
        ("one", "three", "two"),
    )


def test_package_is_sent_with_its_data(tmp_path: Path) -> None:
    path = tree(
        tmp_path,
        {
            "pkg/__init__.py": "",
            "pkg/a.py": "",
            "pkg/sub/__init__.py": "from ... import nothing\nfrom ..a import x\nimport beside\n",
            "pkg/sub/data.json": "{}",
            "pkg/empty/words.txt": "",
            "pkg/__pycache__/a.cpython-311.pyc": "",
            "pkg/.env": "SECRET=1",
            "pkg/.git/config": "",
            "pkg/venv/pyvenv.cfg": "",
            "pkg/venv/lib/x.py": "",
            "beside.py": "",
        },
    )
    assert files("from pkg import a", path) == [
        "beside.py",
        "pkg/__init__.py",
        "pkg/a.py",
        "pkg/empty/words.txt",
        "pkg/sub/__init__.py",
        "pkg/sub/data.json",
    ]


def test_only_imported_modules_of_a_namespace_package_are_sent(tmp_path: Path) -> None:
    path = tree(
        tmp_path / "place",
        {
            "src/model.py": "from src import layers\n",
            "src/layers.py": "",
            "src/huge.bin": "",
            "src/other.py": "",
            "src/deep/er/x.py": "from ..y import z",
            "src/deep/y.py": "",
            "src/whole/__init__.py": "",
            "src/whole/d.txt": "",
        },
    )
    assert files("import src.model, src.deep.er.x", path) == [
        "src/deep/er/x.py",
        "src/deep/y.py",
        "src/layers.py",
        "src/model.py",
    ]
    assert files("from src import whole", path) == ["src/whole/__init__.py", "src/whole/d.txt"]
    assert files("import src", path) == []
    more = tree(tmp_path / "more", {"src/third.py": ""})
    assert files("import src.model, src.third", path, more) == [
        "src/layers.py",
        "src/model.py",
        "src/third.py",
    ]


def test_installed_package_wins_over_a_directory_of_the_same_name(tmp_path: Path) -> None:
    path = tree(tmp_path, {"numpy/core.py": "", "numpy/images/1.png": ""})
    assert files("import numpy, numpy.core", path) == []


def test_first_match_on_the_search_path_is_sent(tmp_path: Path) -> None:
    first = tree(tmp_path / "first", {"x.py": "1"})
    path = tree(tmp_path / "place", {"x.py": "2"})
    assert find_modules("import x", path, first).files == {"x.py": first / "x.py"}


def test_package_wins_over_module_and_module_over_namespace(tmp_path: Path) -> None:
    path = tree(tmp_path, {"x.py": "", "x/__init__.py": "", "y.py": "", "y/z.py": ""})
    assert files("import x, y.z", path) == ["x/__init__.py", "y.py"]


def test_file_named_like_a_standard_module_is_not_sent(tmp_path: Path) -> None:
    path = tree(tmp_path, {"random.py": "", "sys.py": "", "danlu.py": ""})
    assert files("import random, sys, danlu", path, path) == []


def test_installed_modules_are_never_sent(tmp_path: Path) -> None:
    site_packages = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages"
    tree(site_packages, {"lib8b/__init__.py": "", "space8/theirs.py": ""})
    tree(tmp_path, {"space8/ours.py": ""})
    assert files("import lib8b", tmp_path, site_packages) == []
    code = "import space8.theirs, space8.ours"
    assert files(code, tmp_path, site_packages) == ["space8/ours.py"]


def test_editable_modules_outside_the_notebook_are_sent_only_to_other_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tree(tmp_path / "place" / "src", {"near.py": ""})
    outside = tree(tmp_path / "lib" / "src", {"far.py": ""})
    packages = tree(
        tmp_path / "site-packages",
        {"a.pth": f"{inside}\n", "b.pth": f"# {tmp_path}\nimport sys\n{outside}\n"},
    )
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(packages)])
    path, directory = [str(inside), str(outside)], tmp_path / "place"
    for elsewhere, expected in ((False, ["near.py"]), (True, ["far.py", "near.py"])):
        places = classify_search_path(path, place=directory, elsewhere=elsewhere)
        assert list(find_local_modules(["near", "far"], places).files) == expected


def test_module_of_an_editable_finder_is_sent_to_other_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tree(tmp_path, {"flat/pkg8/__init__.py": "", "flat/pkg8/d.txt": ""})

    def find_spec(name: str, path: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != "pkg8":
            return None
        origin = str(file / "flat" / "pkg8" / "__init__.py")
        return importlib.machinery.ModuleSpec(name, None, origin=origin)

    finder = types.SimpleNamespace(__module__="__editable___pkg8_finder", find_spec=find_spec)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    assert list(find_local_modules(["pkg8.x"], (), elsewhere=True).files) == [
        "pkg8/__init__.py",
        "pkg8/d.txt",
    ]
    assert not find_local_modules(["pkg8"], ()).files
    assert local_modules.find_editable_file("pkg9") is None


def test_relative_path_entries_are_relative_to_the_notebook(tmp_path: Path) -> None:
    tree(tmp_path, {"lib/x.py": "", "nb/y.py": ""})
    places = classify_search_path(
        ["../lib", "", "nowhere", "x.zip"], place=tmp_path / "nb", elsewhere=False
    )
    assert list(find_local_modules(["x", "y"], places).files) == ["x.py", "y.py"]


def test_extension_modules_and_bytecode_are_sent(tmp_path: Path) -> None:
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    path = tree(tmp_path, {f"fast{suffix}": "", "数据.py": "", "only.pyc": ""})
    assert files("import fast, 数据, only", path) == [f"fast{suffix}", "only.pyc", "数据.py"]


def test_file_with_invalid_syntax_is_sent_without_its_imports(tmp_path: Path) -> None:
    path = tree(tmp_path, {"old.py": "print 'x'\nimport other\n", "other.py": ""})
    (tmp_path / "latin.py").write_bytes("# coding: latin-1\nimport other\n# ä\n".encode("latin-1"))
    assert files("import old", path) == ["old.py"]
    assert files("import latin", path) == ["latin.py", "other.py"]


def test_symlinks_are_followed_without_cycles(tmp_path: Path) -> None:
    path = tree(tmp_path / "place", {"pkg/__init__.py": "", "real/data.txt": "1"})
    (path / "pkg" / "data").symlink_to("../real")
    (path / "pkg" / "self").symlink_to(".")
    (path / "pkg" / "nowhere").symlink_to("gone")
    with socket.socket(socket.AF_UNIX) as unix_socket:
        unix_socket.bind(str(path / "pkg" / "socket"))
        assert files("import pkg", path) == ["pkg/__init__.py", "pkg/data/data.txt"]


# -- limits ---------------------------------------------------------------------------------------


def test_too_large_package_names_its_largest_files(tmp_path: Path) -> None:
    path = tree(tmp_path, {"pkg/__init__.py": "", "pkg/a.bin": "x" * 900, "pkg/b.bin": "x" * 300})
    with pytest.raises(UsageError) as caught:
        find_modules("import pkg", path, limit=TransferLimit(size=1000))
    assert "(pkg) are too large to send: 3 files of 1.2 kB" in caught.value.message
    assert caught.value.details[:2] == ("pkg/a.bin: 900 B", "pkg/b.bin: 300 B")
    assert "volume" in caught.value.hint


def test_package_with_too_many_files_is_an_error(tmp_path: Path) -> None:
    tree(tmp_path, {f"pkg/d{number}/x": "" for number in range(9)} | {"pkg/__init__.py": ""})
    with pytest.raises(UsageError, match="5 files of"):
        find_modules("import pkg", tmp_path, limit=TransferLimit(count=5))


# -- named by the order ---------------------------------------------------------------------------


def test_requested_module_is_sent_without_an_import(tmp_path: Path) -> None:
    tree(tmp_path, {"plugin.py": "import more", "more.py": "", "pkg/__init__.py": ""})
    places = classify_search_path([""], place=tmp_path, elsewhere=False)
    assert find_local_modules([], places, needed=["plugin", "pkg"]).names == (
        "more",
        "pkg",
        "plugin",
    )


@pytest.mark.parametrize(
    ("name", "hint"), [("plugn", "did you mean plugin?"), ("json", "installed")]
)
def test_missing_module_is_an_error_with_a_suggestion(tmp_path: Path, name: str, hint: str) -> None:
    tree(tmp_path, {"plugin.py": ""})
    places = classify_search_path([*sys.path, ""], place=tmp_path, elsewhere=False)
    with pytest.raises(UsageError, match=f"local module {name}") as caught:
        find_local_modules([], places, needed=[name])
    assert hint in caught.value.hint
