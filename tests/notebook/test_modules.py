"""Which files of the user's own modules travel with a cell."""

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

from danlu.commands import modules
from danlu.commands.imports import imported
from danlu.commands.modules import Found, entries, find
from danlu.commands.trees import Limit
from danlu.errors import UsageError


def tree(place: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


def found(code: str, place: Path, *further: Path, limit: Limit | None = None) -> Found:
    path = [*map(str, further), *sys.path, ""]
    places = entries(path, place=place, elsewhere=False)
    return find(imported(ast.parse(code)), places, limit=limit)


def files(code: str, place: Path, *further: Path) -> list[str]:
    return list(found(code, place, *further).files)


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
def test_every_import_is_found_wherever_it_stands(code: str, names: set[str]) -> None:
    assert set(imported(ast.parse(code), package="p.q")) == names


# -- local or not ---------------------------------------------------------------------------------


def test_modules_and_what_they_import_travel_and_nothing_beside(tmp_path: Path) -> None:
    place = tree(
        tmp_path,
        {
            "one.py": "import two\n",
            "two.py": "def f():\n    from three import x\n",
            "three.py": "import one\n",
            "other.py": "",
        },
    )
    assert found("import one, json, numpy", place) == Found(
        {f"{name}.py": place / f"{name}.py" for name in ("one", "three", "two")},
        ("one", "three", "two"),
    )


def test_a_package_travels_whole_with_its_data(tmp_path: Path) -> None:
    place = tree(
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
    assert files("from pkg import a", place) == [
        "beside.py",
        "pkg/__init__.py",
        "pkg/a.py",
        "pkg/empty/words.txt",
        "pkg/sub/__init__.py",
        "pkg/sub/data.json",
    ]


def test_of_a_namespace_the_modules_travel_that_are_imported(tmp_path: Path) -> None:
    place = tree(
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
    assert files("import src.model, src.deep.er.x", place) == [
        "src/deep/er/x.py",
        "src/deep/y.py",
        "src/layers.py",
        "src/model.py",
    ]
    assert files("from src import whole", place) == ["src/whole/__init__.py", "src/whole/d.txt"]
    assert files("import src", place) == []
    more = tree(tmp_path / "more", {"src/third.py": ""})
    assert files("import src.model, src.third", place, more) == [
        "src/layers.py",
        "src/model.py",
        "src/third.py",
    ]


def test_an_installed_package_goes_before_a_directory_of_its_name(tmp_path: Path) -> None:
    place = tree(tmp_path, {"numpy/core.py": "", "numpy/images/1.png": ""})
    assert files("import numpy, numpy.core", place) == []


def test_the_first_of_a_search_path_is_what_travels(tmp_path: Path) -> None:
    first = tree(tmp_path / "first", {"x.py": "1"})
    place = tree(tmp_path / "place", {"x.py": "2"})
    assert found("import x", place, first).files == {"x.py": first / "x.py"}


def test_a_package_goes_before_a_module_and_a_module_before_a_namespace(tmp_path: Path) -> None:
    place = tree(tmp_path, {"x.py": "", "x/__init__.py": "", "y.py": "", "y/z.py": ""})
    assert files("import x, y.z", place) == ["x/__init__.py", "y.py"]


def test_a_file_with_the_name_of_a_standard_module_stays(tmp_path: Path) -> None:
    place = tree(tmp_path, {"random.py": "", "sys.py": "", "danlu.py": ""})
    assert files("import random, sys, danlu", place, place) == []


def test_what_is_installed_never_travels_wherever_it_lies(tmp_path: Path) -> None:
    site_packages = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages"
    tree(site_packages, {"lib8b/__init__.py": "", "space8/theirs.py": ""})
    tree(tmp_path, {"space8/ours.py": ""})
    assert files("import lib8b", tmp_path, site_packages) == []
    code = "import space8.theirs, space8.ours"
    assert files(code, tmp_path, site_packages) == ["space8/ours.py"]


def test_what_is_editable_travels_only_from_the_notebooks_directory_or_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tree(tmp_path / "place" / "src", {"near.py": ""})
    outside = tree(tmp_path / "lib" / "src", {"far.py": ""})
    packages = tree(
        tmp_path / "site-packages",
        {"a.pth": f"{inside}\n", "b.pth": f"# {tmp_path}\nimport sys\n{outside}\n"},
    )
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(packages)])
    path, place = [str(inside), str(outside)], tmp_path / "place"
    for elsewhere, expected in ((False, ["near.py"]), (True, ["far.py", "near.py"])):
        places = entries(path, place=place, elsewhere=elsewhere)
        assert list(find(["near", "far"], places).files) == expected


def test_elsewhere_what_an_editable_distributions_finder_knows_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tree(tmp_path, {"flat/pkg8/__init__.py": "", "flat/pkg8/d.txt": ""})

    def find_spec(name: str, path: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != "pkg8":
            return None
        origin = str(place / "flat" / "pkg8" / "__init__.py")
        return importlib.machinery.ModuleSpec(name, None, origin=origin)

    finder = types.SimpleNamespace(__module__="__editable___pkg8_finder", find_spec=find_spec)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    assert list(find(["pkg8.x"], (), elsewhere=True).files) == ["pkg8/__init__.py", "pkg8/d.txt"]
    assert not find(["pkg8"], ()).files
    assert modules.editable_file("pkg9") is None


def test_a_relative_entry_of_the_path_is_one_of_the_notebooks_directory(tmp_path: Path) -> None:
    tree(tmp_path, {"lib/x.py": "", "nb/y.py": ""})
    places = entries(["../lib", "", "nowhere", "x.zip"], place=tmp_path / "nb", elsewhere=False)
    assert list(find(["x", "y"], places).files) == ["x.py", "y.py"]


def test_a_module_in_c_and_one_of_another_name_travel_as_they_are(tmp_path: Path) -> None:
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    place = tree(tmp_path, {f"fast{suffix}": "", "数据.py": "", "only.pyc": ""})
    assert files("import fast, 数据, only", place) == [f"fast{suffix}", "only.pyc", "数据.py"]


def test_a_file_that_is_no_python_travels_without_its_imports(tmp_path: Path) -> None:
    place = tree(tmp_path, {"old.py": "print 'x'\nimport other\n", "other.py": ""})
    (tmp_path / "latin.py").write_bytes("# coding: latin-1\nimport other\n# ä\n".encode("latin-1"))
    assert files("import old", place) == ["old.py"]
    assert files("import latin", place) == ["latin.py", "other.py"]


def test_links_are_followed_but_never_in_circles(tmp_path: Path) -> None:
    place = tree(tmp_path / "place", {"pkg/__init__.py": "", "real/data.txt": "1"})
    (place / "pkg" / "data").symlink_to("../real")
    (place / "pkg" / "self").symlink_to(".")
    (place / "pkg" / "nowhere").symlink_to("gone")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(place / "pkg" / "socket"))
        assert files("import pkg", place) == ["pkg/__init__.py", "pkg/data/data.txt"]


# -- limits ---------------------------------------------------------------------------------------


def test_a_package_that_is_too_large_names_its_largest_files(tmp_path: Path) -> None:
    place = tree(tmp_path, {"pkg/__init__.py": "", "pkg/a.bin": "x" * 900, "pkg/b.bin": "x" * 300})
    with pytest.raises(UsageError) as caught:
        found("import pkg", place, limit=Limit(size=1000))
    assert "(pkg) are too large to send: 3 files of 1.2 kB" in caught.value.message
    assert caught.value.details[:2] == ("pkg/a.bin: 900 B", "pkg/b.bin: 300 B")
    assert "volume" in caught.value.hint


def test_a_package_of_too_many_files_is_refused(tmp_path: Path) -> None:
    tree(tmp_path, {f"pkg/d{number}/x": "" for number in range(9)} | {"pkg/__init__.py": ""})
    with pytest.raises(UsageError, match="5 files of"):
        found("import pkg", tmp_path, limit=Limit(count=5))


# -- named by the order ---------------------------------------------------------------------------


def test_a_module_that_no_import_names_travels_when_it_is_asked_for(tmp_path: Path) -> None:
    tree(tmp_path, {"plugin.py": "import more", "more.py": "", "pkg/__init__.py": ""})
    places = entries([""], place=tmp_path, elsewhere=False)
    assert find([], places, needed=["plugin", "pkg"]).names == ("more", "pkg", "plugin")


@pytest.mark.parametrize(
    ("name", "hint"), [("plugn", "did you mean plugin?"), ("json", "installed")]
)
def test_a_module_that_is_not_there_is_named_with_the_nearest(
    tmp_path: Path, name: str, hint: str
) -> None:
    tree(tmp_path, {"plugin.py": ""})
    places = entries([*sys.path, ""], place=tmp_path, elsewhere=False)
    with pytest.raises(UsageError, match=f"no local module {name}") as caught:
        find([], places, needed=[name])
    assert hint in caught.value.hint
