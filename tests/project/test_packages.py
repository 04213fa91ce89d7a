"""Packages added to build files, requirements files and pyproject.toml, and removed from them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.engine.settings import load_settings
from danlu.errors import BuildFileError, DanluError, UsageError
from danlu.project.packages import (
    APT,
    CONDA,
    PYTHON,
    PackageKind,
    ProjectEdit,
    add_to_requirements_file,
    change_packages,
)
from danlu.project.project import Project
from danlu.project.string_list import add_item, parse_items, read_text, remove_item, replace_item
from danlu.util.paths import Paths

HEAD = 'def build():\n    base(os="debian12")\n'


def edit_file(tmp_path: Path, text: str, kind: PackageKind = PYTHON, **files: str) -> ProjectEdit:
    (tmp_path / "build.envd").write_bytes(text.encode())
    for name, content in files.items():
        (tmp_path / name.replace("__", ".")).write_bytes(content.encode())
    return ProjectEdit(Project.open(directory=tmp_path), kind)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('["a"]', '["a", "new"]'),
        ("['a']", "['a', 'new']"),
        ('["a",]', '["a", "new",]'),
        ("[]", '["new"]'),
        ('["é", "b"]', '["é", "b", "new"]'),
        ('[\n  "a",\n  "b",\n]', '[\n  "a",\n  "b",\n  "new",\n]'),
        ('[\n  "a",\n  "b"  # why, b\n]', '[\n  "a",\n  "b",  # why, b\n  "new"\n]'),
        ('[\n  "a",  # a\n]', '[\n  "a",  # a\n  "new",\n]'),
        ('["a",\n "b"]', '["a",\n "b",\n "new"]'),
        ('[\r\n  "a",\r\n]', '[\r\n  "a",\r\n  "new",\r\n]'),
        ('[\n  "a", "b",\n]', '[\n  "a", "b", "new",\n]'),
        ("[  # none yet\n]", '["new",  # none yet\n]'),
        ("[NAME]", '[NAME, "new"]'),
    ],
)
def test_item_is_added_in_the_form_of_the_list(before: str, after: str) -> None:
    assert add_item(before, "new") == after


@pytest.mark.parametrize(
    ("before", "index", "after"),
    [
        ('["a"]', 0, "[]"),
        ('["a", "b"]', 0, '["b"]'),
        ('["a", "b"]', 1, '["a"]'),
        ('["a", "b",]', 1, '["a",]'),
        ('[\n  "a",  # a, really\n  "b"\n]', 0, '[\n  "b"\n]'),
        ('[\n  "a",\n  "b"  # b\n]', 1, '[\n  "a",\n]'),
        ('["a",  # keep\n "b"]', 1, '["a",  # keep\n ]'),
        ('[\n  "a", "b",\n  "c",\n]', 1, '[\n  "a", \n  "c",\n]'),
    ],
)
def test_item_is_removed_with_its_line(before: str, index: int, after: str) -> None:
    assert remove_item(before, index) == after


_GAP = st.sampled_from(["", " ", "\n", "\n    ", " # x, ]\n  ", "\r\n"])
_TEXT = st.text(st.sampled_from("aé\"'#],\\ "), max_size=4)


@given(
    st.lists(st.tuples(_GAP, _TEXT, _GAP, st.booleans()), max_size=4), _GAP, st.booleans(), _TEXT
)
def test_edits_change_one_item_of_any_list(
    items: list[tuple[str, str, str, bool]], gap: str, comma: bool, new: str
) -> None:
    parts = [
        before + (repr(text) if single else json.dumps(text, ensure_ascii=False)) + behind
        for before, text, behind, single in items
    ]
    array = "[" + ",".join(parts) + ("," if comma and items else "") + gap + "]"
    try:
        texts = [read_text(item) for item in parse_items(array)]
    except SyntaxError:
        return
    assert read_list(add_item(array, new)) == [*texts, new]
    for index in range(len(texts)):
        rest = texts[:index] + texts[index + 1 :]
        assert read_list(remove_item(array, index)) == rest
        replaced = read_list(replace_item(array, index, new))
        assert replaced == [*texts[:index], new, *texts[index + 1 :]]


def read_list(array: str) -> list[str | None]:
    return [read_text(item) for item in parse_items(array)]


@pytest.mark.parametrize(
    ("kind", "body", "added"),
    [
        (PYTHON, 'install.python()\n    run(["x"])\n', 'install.python_packages(name=["x>=1"])'),
        (APT, 'install.python()\n    run(["x"])\n', 'install.apt_packages(name=["x>=1"])'),
    ],
)
def test_call_is_inserted_behind_the_last_declaration(
    tmp_path: Path, kind: PackageKind, body: str, added: str
) -> None:
    edit = edit_file(tmp_path, f"{HEAD}    {body}", kind)
    assert edit.add("x>=1")
    expected = body.replace("\n", f"\n    {added}\n", 1)
    assert edit.after["build.envd"] == f"{HEAD}    {expected}"


@pytest.mark.parametrize(
    ("package", "after"),
    [
        ("six", '["NumPy>=1", "scikit_learn", "six"]'),
        ("numpy>=2", '["numpy>=2", "scikit_learn"]'),
        ("scikit.learn[x]", '["NumPy>=1", "scikit.learn[x]"]'),
        ("numpy", None),
        ("Scikit-Learn", None),
    ],
)
def test_packages_are_compared_by_their_normalized_names(
    tmp_path: Path, package: str, after: str | None
) -> None:
    line = '    install.python_packages(name=["NumPy>=1", "scikit_learn"])  # kept\n'
    edit = edit_file(tmp_path, HEAD + line)
    assert edit.add(package) == (after is not None)
    assert edit.changed_files == (("build.envd",) if after else ())
    expected = line if after is None else line.replace('["NumPy>=1", "scikit_learn"]', after)
    assert edit.after["build.envd"] == HEAD + expected


def test_removed_package_leaves_no_empty_call(tmp_path: Path) -> None:
    edit = edit_file(
        tmp_path,
        HEAD + '    install.python_packages(["six"])\n    install.apt_packages(["git"])\n',
    )
    edit.remove("SIX")
    assert edit.after["build.envd"] == HEAD + '    install.apt_packages(["git"])\n'


def test_removed_package_is_removed_from_all_lists(tmp_path: Path) -> None:
    line = '    install.python_packages(["six"{}], requirements="r.txt")\n'
    edit = edit_file(tmp_path, HEAD + line.format(', "six>1"'), r__txt="six\ntqdm\n")
    edit.remove("six")
    assert edit.after == {
        "build.envd": HEAD + '    install.python_packages([], requirements="r.txt")\n',
        "r.txt": "tqdm\n",
    }


@pytest.mark.parametrize(
    ("arguments", "files", "requirements"),
    [
        ('requirements="r.txt"', ("r.txt",), "a\nb==2\nc==3\n"),
        ('["x"], requirements="r.txt"', (), "a\nb\n"),
        ('["x"]', (), "a\nb\n"),
        ("NAMES", (), "a\nb\n"),
    ],
)
def test_packages_of_an_environment_go_where_an_added_one_goes_if_that_is_a_file(
    tmp_path: Path, arguments: str, files: tuple[str, ...], requirements: str
) -> None:
    text = f"NAMES = []\n{HEAD}    install.python_packages({arguments})\n"
    (tmp_path / "build.envd").write_text(text)
    (tmp_path / "r.txt").write_text("a\nb\n")
    paths = Paths.of({"DANLU_HOME": str(tmp_path / "home")})
    opened = Project.open(directory=tmp_path, paths=paths)
    assert add_to_requirements_file(opened, ["b==2", "c==3"]) == files
    assert (tmp_path / "r.txt").read_text() == requirements
    assert (tmp_path / "build.envd").read_text() == text


def test_unknown_package_cannot_be_removed(tmp_path: Path) -> None:
    edit = edit_file(
        tmp_path, HEAD + '    install.python_packages(requirements="r.txt")\n', r__txt=""
    )
    with pytest.raises(
        UsageError, match=r"six is not among the Python packages of build\.envd and r"
    ):
        edit.remove("six")


@pytest.mark.parametrize(
    "body",
    [
        "install.python_packages(PACKAGES)",
        'install.python_packages(["a" + x for x in "bc"])',
        'for name in ["a", "b"]:\n        install.python_packages([name])',
    ],
)
def test_list_made_by_code_is_left_alone(tmp_path: Path, body: str) -> None:
    edit = edit_file(tmp_path, f'PACKAGES = ["a"]\n{HEAD}    {body}\n')
    with pytest.raises(BuildFileError, match="listed by code") as caught:
        edit.add("six")
    assert 'install.python_packages(name=["six"])' in caught.value.hint
    assert caught.value.span is not None
    assert not edit.changed_files


def test_environment_file_of_conda_is_not_edited(tmp_path: Path) -> None:
    body = '    install.conda()\n    install.conda_packages(env_file="environment.yml")\n'
    with pytest.raises(BuildFileError, match=r"listed in environment\.yml"):
        edit_file(tmp_path, HEAD + body, CONDA).add("numpy")


def test_conda_packages_are_compared_without_their_channel(tmp_path: Path) -> None:
    body = '    install.conda()\n    install.conda_packages(["conda-forge::numpy=1"])\n'
    edit = edit_file(tmp_path, HEAD + body, CONDA)
    assert not edit.add("numpy")
    assert edit.add("numpy=2")
    assert edit.after["build.envd"] == HEAD + body.replace("conda-forge::numpy=1", "numpy=2")


def test_conda_packages_are_compared_by_the_name_that_conda_reads(tmp_path: Path) -> None:
    body = '    install.conda_packages(["ruamel_yaml[version=1.0]", "six 1.16", "zlib 1.2|1.3"])\n'
    edit = edit_file(tmp_path, HEAD + body, CONDA)
    edit.add("six[version='>=1.15']")
    edit.add("ruamel.yaml")
    items = (
        """["ruamel_yaml[version=1.0]", "six[version='>=1.15']", "zlib 1.2|1.3", "ruamel.yaml"]"""
    )
    assert edit.after["build.envd"] == f"{HEAD}    install.conda_packages({items})\n"


@pytest.mark.parametrize(
    ("before", "package", "after"),
    [
        ("# tools\nsix>=1  # old\ntqdm", "pandas", "# tools\nsix>=1  # old\ntqdm\npandas\n"),
        ("six>=1  # old\r\ntqdm\r\n", "six>=2", "six>=2  # old\r\ntqdm\r\n"),
        ("-r other.txt\n./local\n", "six", "-r other.txt\n./local\nsix\n"),
    ],
)
def test_requirements_file_is_edited_by_lines(
    tmp_path: Path, before: str, package: str, after: str
) -> None:
    text = HEAD + '    install.python_packages(requirements="r.txt")\n'
    edit = edit_file(tmp_path, text, r__txt=before)
    assert edit.add(package)
    assert edit.changed_files == ("r.txt",)
    assert edit.after["r.txt"] == after


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("six==1 --hash=sha256:00\n", "has hashes"),
        ("# This file was autogenerated by uv\nsix==1\n", "was generated"),
        ("six>=1,\\\n<2\n", "several lines"),
    ],
)
def test_requirements_file_of_a_program_is_not_edited(
    tmp_path: Path, content: str, message: str
) -> None:
    text = HEAD + '    install.python_packages(requirements="r.txt")\n'
    with pytest.raises(UsageError, match=message):
        edit_file(tmp_path, text, r__txt=content).add("six>=3")


@pytest.mark.parametrize(
    ("before", "package", "after"),
    [
        (
            '[project]\nname = "x"\ndependencies = [\n  "six",  # old\n]\n\n[tool.a]\nb = 1\n',
            "tqdm; python_version < '4'",
            '[project]\nname = "x"\ndependencies = [\n  "six",  # old\n'
            "  \"tqdm; python_version < '4'\",\n]\n\n[tool.a]\nb = 1\n",
        ),
        (
            "[project]\ndependencies = ['six[a]>1', \"b\"]\n",
            "six>2",
            '[project]\ndependencies = ["six>2", "b"]\n',
        ),
        (
            '[project]\nname = "x"\n\n[tool.a]\nb = 1\n',
            "six",
            '[project]\nname = "x"\ndependencies = ["six"]\n\n[tool.a]\nb = 1\n',
        ),
        ('[project]\nname = "x"', "six", '[project]\nname = "x"\ndependencies = ["six"]\n'),
    ],
)
def test_pyproject_keeps_its_form(tmp_path: Path, before: str, package: str, after: str) -> None:
    text = HEAD + '    install.python_packages(pyproject="pyproject.toml")\n'
    edit = edit_file(tmp_path, text, pyproject__toml=before)
    assert edit.add(package)
    assert edit.after["pyproject.toml"] == after
    assert package in tomllib.loads(after)["project"]["dependencies"]
    edit.remove(package.partition(">")[0].partition(";")[0])
    assert package not in tomllib.loads(edit.after["pyproject.toml"])["project"]["dependencies"]


@pytest.mark.parametrize(
    "content",
    [
        '[project]\nname = "x"\ndynamic = ["dependencies"]\n',
        'project.dependencies = ["a"]\n',
        '[tool.poetry.dependencies]\nsix = "1"\n',
    ],
)
def test_pyproject_without_a_place_is_left_alone(tmp_path: Path, content: str) -> None:
    text = HEAD + '    install.python_packages(pyproject="pyproject.toml")\n'
    with pytest.raises(UsageError, match=r"cannot edit the dependencies of pyproject\.toml"):
        edit_file(tmp_path, text, pyproject__toml=content).add("six")


@pytest.mark.parametrize(
    ("kind", "package"),
    [(PYTHON, "./local"), (PYTHON, "six=1"), (APT, "git --yes"), (APT, "-x"), (CONDA, "a>=1<2")],
)
def test_invalid_package_is_refused(tmp_path: Path, kind: PackageKind, package: str) -> None:
    edit_file(tmp_path, HEAD)
    with pytest.raises(UsageError, match="invalid"):
        change(tmp_path, kind, package)
    assert (tmp_path / "build.envd").read_text() == HEAD


def test_failure_leaves_the_files_as_before(tmp_path: Path) -> None:
    text = HEAD + '    install.python_packages(["six"], requirements="r.txt")\n    nothing()\n'
    edit_file(tmp_path, text, r__txt="tqdm\n")
    file = tmp_path / "build.envd"
    file.chmod(0o640)
    (tmp_path / "danlu.lock").write_text("")
    with pytest.raises(DanluError, match="nothing") as caught:
        change(tmp_path, PYTHON, "pandas", "tqdm>1")
    assert caught.value.details[-1] == "build.envd and r.txt is as before"
    assert (file.read_text(), file.stat().st_mode & 0o777) == (text, 0o640)
    assert (tmp_path / "r.txt").read_text() == "tqdm\n"
    assert (tmp_path / "danlu.lock").read_text() == ""


def change(tmp_path: Path, kind: PackageKind, *packages: str) -> None:
    settings = load_settings(Paths.of({"DANLU_HOME": str(tmp_path / "home")}))
    project = Project.open(directory=tmp_path)
    change_packages(project, kind, added=packages, settings=settings, progress=lambda event: None)
