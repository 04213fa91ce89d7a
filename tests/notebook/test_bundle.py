"""What travels with a cell, as it is written and as a real process of a replica finds it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.notebook.bundle import command
from danlu.notebook.values import Limits, returned
from tests.guest.sent import run, sent

LOSSES = """
from helper import VALUE
from layers import scale
import pkg.words

losses = [VALUE * scale(x) for x in xs]
words = pkg.words.read()
"""


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    place = tmp_path / "notebook"
    (place / "pkg" / "data").mkdir(parents=True)
    (place / "helper.py").write_text("from layers import scale\nVALUE = scale(1)\n")
    (place / "layers.py").write_text("def scale(x):\n    return 2 * x\n")
    (place / "pkg" / "__init__.py").write_text("")
    (place / "pkg" / "words.py").write_text(
        "from pathlib import Path\n\ndef read():\n"
        "    return (Path(__file__).parent / 'data' / 'wörter.txt').read_text().split()\n"
    )
    (place / "pkg" / "data" / "wörter.txt").write_text("eins zwei")
    return place


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(directory)): one.read_bytes()
        for one in sorted(directory.rglob("*"))
        if one.is_file()
    }


def test_two_modules_a_package_with_data_and_a_variable_reach_the_replica(notebook: Path) -> None:
    bundle = sent(notebook, LOSSES, variables={"xs": [1, 2]}, returns=("losses", "words"))
    assert bundle.modules == ("helper", "layers", "pkg")
    assert bundle.values == ("xs",)
    assert bundle.size == sum(map(len, contents(bundle.directory).values()))
    for one in notebook.rglob("*.py"):
        one.unlink()  # nothing is read from here any more
    done = run(bundle)
    assert done.code == 0, done.err
    assert returned(done.result(), ["losses", "words"]) == {
        "losses": [4, 8],
        "words": ["eins", "zwei"],
    }


def test_a_module_that_was_imported_and_then_edited_travels_as_it_is_on_disk(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (notebook / "edited9.py").write_text("x = 'old'\n")
    monkeypatch.syspath_prepend(str(notebook))
    __import__("edited9")
    monkeypatch.delitem(sys.modules, "edited9")
    (notebook / "edited9.py").write_text("x = 'new and longer'\n")
    assert run(sent(notebook, "import edited9\nprint(edited9.x)\n")).out == "new and longer\n"


def test_the_same_cell_gives_the_same_bytes(notebook: Path) -> None:
    variables = {"xs": [1, 2], "f": lambda: 1, "a": {"b": 2}}
    first, second = (
        contents(sent(notebook, LOSSES, variables=variables, target=name).directory)
        for name in ("first", "second")
    )
    assert first == second


def test_what_is_sent_is_the_agreed_directory(notebook: Path) -> None:
    found = contents(sent(notebook, "import helper\n", name="my-job").directory)
    assert set(found) == {
        "again/danlu_cell.py",
        "cell/my-job.py",
        *(f"danlu_guest/{name}.py" for name in ("__init__", "cell", "leave", "parcel")),
        *(f"danlu_guest/{name}.py" for name in ("deliver", "place", "trace", "versions")),
        "last/danlu.py",
        "modules/helper.py",
        "modules/layers.py",
        "order.json",
        "run.py",
    }
    assert command("python3") == ("python3", "$(DANLU_FILES)/run.py")


def test_an_executable_of_a_package_stays_one(notebook: Path) -> None:
    script = notebook / "pkg" / "tool.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o700)
    sent_ = sent(notebook, "import pkg\n").directory / "modules" / "pkg"
    assert (sent_ / "tool.sh").stat().st_mode & 0o111
    assert not (sent_ / "words.py").stat().st_mode & 0o111


def test_the_module_of_a_sent_objects_class_travels_with_it(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (notebook / "shapes9.py").write_text("__version__ = '1'\n\nclass Box:\n    side = 3\n")
    monkeypatch.syspath_prepend(str(notebook))
    box = __import__("shapes9").Box()
    bundle = sent(notebook, "print(box.side)\n", variables={"box": box})
    monkeypatch.delitem(sys.modules, "shapes9")
    assert bundle.modules == ("shapes9",)
    told = json.loads((bundle.directory / "order.json").read_text())["values"]["box"]
    assert (told["modules"], told["libraries"]) == ([], {})
    assert run(bundle).out == "3\n"


def test_a_module_that_cannot_be_read_is_named(notebook: Path) -> None:
    (notebook / "gone.py").symlink_to(notebook / "pkg")
    (notebook / "pkg" / "gone.txt").symlink_to("/proc/self/mem")
    with pytest.raises(UsageError, match=r"gone\.txt cannot be sent with the job"):
        sent(notebook, "import pkg\n")


def test_a_cell_that_is_no_python_is_refused_with_its_line(notebook: Path) -> None:
    with pytest.raises(SyntaxError) as caught:
        sent(notebook, "\n\nx = = 1\n")
    assert caught.value.lineno == 3


def test_odd_names_of_jobs_are_names_of_files(notebook: Path) -> None:
    for number, name in enumerate(("../x/y", "实验 1", "n" * 300, "...")):
        directory = sent(notebook, "", name=name, target=f"sent{number}").directory
        (file,) = (directory / "cell").iterdir()
        assert json.loads((directory / "order.json").read_text())["code"] == f"cell/{file.name}"


# -- what is refused before anything runs ---------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "returns", "hint"),
    [
        ("losses = []", "losse", "did you mean losses?"),
        ("print(x)", "y", "set it in the cell, or send it"),
        ("lr = 1", "lrs", "did you mean lr?"),
    ],
)
def test_a_name_to_return_that_the_cell_never_sets_is_refused(
    notebook: Path, code: str, returns: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=f"no variable {returns} to return") as caught:
        sent(notebook, code, returns=(returns,))
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
def test_whatever_may_set_a_name_lets_it_be_returned(notebook: Path, code: str) -> None:
    bundle = sent(notebook, code, returns=("y",))
    assert json.loads((bundle.directory / "order.json").read_text())["returns"] == ["y"]


def test_a_sent_variable_and_an_option_can_be_returned(notebook: Path) -> None:
    variables, sweep = {"x": 1}, ("learning-rate=1,2",)
    returns = ("x", "learning_rate")
    bundle = sent(notebook, "", variables=variables, sweep=sweep, returns=returns)
    done = run(bundle, "--learning-rate", "2")
    assert returned(done.result(), returns) == {"x": 1, "learning_rate": 2}


def test_an_option_that_cannot_be_a_variable_is_refused(notebook: Path) -> None:
    with pytest.raises(UsageError, match="'lambda' cannot be a variable"):
        sent(notebook, "", sweep=("lambda=1,2",))


def test_a_variable_that_is_too_large_names_itself_and_its_size(notebook: Path) -> None:
    with pytest.raises(UsageError, match=r"xs cannot be sent: it takes 3\.0 MiB, and 1\.0") as e:
        sent(notebook, "", variables={"xs": bytes(3 << 20)}, limits=Limits(one=1 << 20))
    assert "write it to a file" in e.value.hint
    assert not list(notebook.parent.glob("sent/*"))
