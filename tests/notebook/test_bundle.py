"""The bundle of a cell, as written and as a replica process finds it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.notebook.bundle import replica_command
from danlu.notebook.variables import unpack_results
from tests.replica_runtime.bundles import run, write_cell_bundle

LOSSES = """
from helper import VALUE
from layers import scale
import pkg.words

losses = [VALUE * scale(x) for x in xs]
words = pkg.words.read()
"""


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    directory = tmp_path / "notebook"
    (directory / "pkg" / "data").mkdir(parents=True)
    (directory / "helper.py").write_text("from layers import scale\nVALUE = scale(1)\n")
    (directory / "layers.py").write_text("def scale(x):\n    return 2 * x\n")
    (directory / "pkg" / "__init__.py").write_text("")
    (directory / "pkg" / "words.py").write_text(
        "from pathlib import Path\n\ndef read():\n"
        "    return (Path(__file__).parent / 'data' / 'wörter.txt').read_text().split()\n"
    )
    (directory / "pkg" / "data" / "wörter.txt").write_text("eins zwei")
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_modules_package_data_and_variables_are_sent(notebook: Path) -> None:
    bundle = write_cell_bundle(
        notebook, LOSSES, variables={"xs": [1, 2]}, returns=("losses", "words")
    )
    assert bundle.modules == ("helper", "layers", "pkg")
    assert bundle.values == ("xs",)
    assert bundle.size == sum(map(len, contents(bundle.directory).values()))
    for path in notebook.rglob("*.py"):
        path.unlink()  # nothing is read from here any more
    result = run(bundle)
    assert result.code == 0, result.err
    assert unpack_results(result.result(), ["losses", "words"]) == {
        "losses": [4, 8],
        "words": ["eins", "zwei"],
    }


def test_edited_module_is_sent_as_it_is_on_disk(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (notebook / "edited9.py").write_text("x = 'old'\n")
    monkeypatch.syspath_prepend(str(notebook))
    __import__("edited9")
    monkeypatch.delitem(sys.modules, "edited9")
    (notebook / "edited9.py").write_text("x = 'new and longer'\n")
    assert (
        run(write_cell_bundle(notebook, "import edited9\nprint(edited9.x)\n")).out
        == "new and longer\n"
    )


def test_bundle_is_deterministic(notebook: Path) -> None:
    variables = {"xs": [1, 2], "f": lambda: 1, "a": {"b": 2}}
    first, second = (
        contents(write_cell_bundle(notebook, LOSSES, variables=variables, target=name).directory)
        for name in ("first", "second")
    )
    assert first == second


def test_bundle_has_the_documented_files(notebook: Path) -> None:
    result = contents(write_cell_bundle(notebook, "import helper\n", name="my-job").directory)
    assert set(result) == {
        "spawned_main/danlu_cell.py",
        "cell/my-job.py",
        *(
            f"danlu_replica/{name}.py"
            for name in ("__init__", "cell_entry", "encoding", "exit", "pickles", "results")
        ),
        *(f"danlu_replica/{name}.py" for name in ("display", "matplotlib_backend", "termination")),
        "fallback/danlu.py",
        "modules/helper.py",
        "modules/layers.py",
        "manifest.json",
        "run.py",
    }
    assert replica_command("python3") == ("python3", "$(DANLU_FILES)/run.py")


def test_executable_bit_of_package_data_is_kept(notebook: Path) -> None:
    script = notebook / "pkg" / "tool.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o700)
    sent_ = write_cell_bundle(notebook, "import pkg\n").directory / "modules" / "pkg"
    assert (sent_ / "tool.sh").stat().st_mode & 0o111
    assert not (sent_ / "words.py").stat().st_mode & 0o111


def test_module_of_a_sent_objects_class_is_sent(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (notebook / "shapes9.py").write_text("__version__ = '1'\n\nclass Box:\n    side = 3\n")
    monkeypatch.syspath_prepend(str(notebook))
    box = __import__("shapes9").Box()
    bundle = write_cell_bundle(notebook, "print(box.side)\n", variables={"box": box})
    monkeypatch.delitem(sys.modules, "shapes9")
    assert bundle.modules == ("shapes9",)
    output = json.loads((bundle.directory / "manifest.json").read_text())["values"]["box"]
    assert (output["modules"], output["libraries"]) == ([], {})
    assert run(bundle).out == "3\n"


def test_unreadable_module_is_named(notebook: Path) -> None:
    (notebook / "gone.py").symlink_to(notebook / "pkg")
    (notebook / "pkg" / "gone.txt").symlink_to("/proc/self/mem")
    with pytest.raises(UsageError, match=r"cannot read .*gone\.txt to send it with the job"):
        write_cell_bundle(notebook, "import pkg\n")


def test_invalid_python_is_reported_with_its_line(notebook: Path) -> None:
    with pytest.raises(SyntaxError) as caught:
        write_cell_bundle(notebook, "\n\nx = = 1\n")
    assert caught.value.lineno == 3


def test_job_names_become_valid_file_names(notebook: Path) -> None:
    for number, name in enumerate(("../x/y", "实验 1", "n" * 300, "...")):
        directory = write_cell_bundle(notebook, "", name=name, target=f"sent{number}").directory
        (file,) = (directory / "cell").iterdir()
        assert json.loads((directory / "manifest.json").read_text())["code"] == f"cell/{file.name}"


# -- what is refused before anything runs ---------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "returns", "hint"),
    [
        ("losses = []", "losse", "did you mean losses?"),
        ("print(x)", "y", "set it in the cell, or send it"),
        ("lr = 1", "lrs", "did you mean lr?"),
    ],
)
def test_returning_an_unset_variable_is_an_error(
    notebook: Path, code: str, returns: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=f"cannot return {returns}: ") as caught:
        write_cell_bundle(notebook, code, returns=(returns,))
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    "code",
    [
        "def y(): pass",
        "class y: pass",
        "import a.b as y",
        "import y.z",
        "for y in []: pass",
        "with open('f') as y: pass",
        "x, *y = 1, 2",
        "y: int = 1",
        "y += 1",
        "print(y := 1)",
        "def f():\n    global y\n    y = 1",
        "match 1:\n    case [*y]: pass",
        "match 1:\n    case {'a': 1, **y}: pass",
        "match 1:\n    case int() as y: pass",
        "from a import *",
        "exec('y = 1')",
        "globals()['y'] = 1",
    ],
)
def test_dynamic_assignment_allows_any_return_name(notebook: Path, code: str) -> None:
    bundle = write_cell_bundle(notebook, code, returns=("y",))
    assert json.loads((bundle.directory / "manifest.json").read_text())["returns"] == ["y"]


def test_sent_variables_and_sweep_parameters_can_be_returned(notebook: Path) -> None:
    variables, sweep = {"x": 1}, ("learning-rate=1,2",)
    returns = ("x", "learning_rate")
    bundle = write_cell_bundle(notebook, "", variables=variables, sweep=sweep, returns=returns)
    result = run(bundle, "--learning-rate", "2")
    assert unpack_results(result.result(), returns) == {"x": 1, "learning_rate": 2}


def test_invalid_variable_name_of_an_option_is_an_error(notebook: Path) -> None:
    with pytest.raises(UsageError, match="invalid variable name 'lambda'"):
        write_cell_bundle(notebook, "", sweep=("lambda=1,2",))


def test_too_large_variable_is_named_with_its_size(notebook: Path) -> None:
    with pytest.raises(UsageError, match=r"it takes 3\.0 MiB, but the limit is 1\.0") as e:
        write_cell_bundle(notebook, "", variables={"xs": bytes(3 << 20)}, limit=1 << 20)
    assert "write it to a file" in e.value.hint
    assert not list(notebook.parent.glob("sent/*"))
