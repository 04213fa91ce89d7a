"""A cell that was sent runs as a script would, in a process of its own."""

from __future__ import annotations

import ast
import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from danlu import guest
from danlu.notebook.bundle import Bundle
from danlu.notebook.values import Limits, returned
from tests.guest.sent import run, sent

GUESTS = ("cell", "parcel", "place", "report", "run", "trace", "versions")


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    place = tmp_path / "notebook"
    place.mkdir()
    return place


# -- as a script ----------------------------------------------------------------------------------


def test_the_code_is_main_with_the_variables_that_were_sent(notebook: Path) -> None:
    bundle = sent(notebook, "print(__name__, x + 1)\n", variables={"x": 41})
    done = run(bundle)
    assert (done.code, done.out, done.err) == (0, "__main__ 42\n", "")


def test_the_code_travels_byte_for_byte(notebook: Path) -> None:
    code = "\n\n# ä\r\ntext = '''a\n\n  %x=1\n'''\n\tif_ = 1" + "\n" * 3
    code = code.replace("\tif_", "if_")
    bundle = sent(notebook, code)
    assert (bundle.directory / "cell" / "cell.py").read_bytes() == code.encode()


def test_a_coding_line_changes_nothing_as_in_a_notebook(notebook: Path) -> None:
    done = run(sent(notebook, "# -*- coding: latin-1 -*-\nprint(len('ä'))\n"))
    assert done.out == "1\n"


def test_each_option_is_a_variable_and_a_literal_where_it_is_one(notebook: Path) -> None:
    bundle = sent(notebook, "print([lr, kind, deep_er, empty])\n")
    done = run(bundle, "--lr", "1e-3", "--kind", "adam", "--deep-er=[1, 2]", "--empty", "")
    assert done.out == "[0.001, 'adam', [1, 2], '']\n"


def test_an_option_that_cannot_be_a_variable_is_refused(notebook: Path) -> None:
    done = run(sent(notebook, "print('never')\n"), "--lambda", "1")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("danlu: --lambda cannot be a variable\nhint: ")


def test_the_source_of_functions_and_classes_is_found(notebook: Path) -> None:
    code = (
        "\nimport inspect\n\ndef f():\n    return 1\n\nclass C:\n    x = 2\n\n"
        "print(inspect.getsource(f) + inspect.getsource(C), end='')\n"
    )
    assert run(sent(notebook, code)).out == "def f():\n    return 1\nclass C:\n    x = 2\n"


SPAWNING = """
import dataclasses
import multiprocessing

@dataclasses.dataclass
class Task:
    number: int

def work(task):
    return task.number * x + lr, __name__

if __name__ == "__main__":
    with multiprocessing.get_context(KIND).Pool(2) as pool:
        found = pool.map(work, [Task(1), Task(2)])
"""


@pytest.mark.parametrize(
    ("kind", "name"),
    [("fork", "__main__"), ("spawn", "__mp_main__"), ("forkserver", "__mp_main__")],
)
def test_processes_find_the_same_code_variables_and_options(
    notebook: Path, kind: str, name: str
) -> None:
    variables = {"x": 10, "KIND": kind}
    bundle = sent(notebook, SPAWNING, variables=variables, returns=("found",), sweep=("lr=1",))
    done = run(bundle, "--lr", "0.5")
    assert done.code == 0, done.err
    assert returned(done.result(), ["found"]) == {"found": [(10.5, name), (20.5, name)]}


def test_a_process_that_spawns_finds_the_same_in_those_it_spawns(notebook: Path) -> None:
    code = """
import multiprocessing

def deepest(queue):
    queue.put((x, __name__))

def middle(queue):
    one = multiprocessing.get_context("spawn").Process(target=deepest, args=(queue,))
    one.start()
    one.join()

if __name__ == "__main__":
    queue = multiprocessing.get_context("spawn").Queue()
    one = multiprocessing.get_context("spawn").Process(target=middle, args=(queue,))
    one.start()
    print(*queue.get(timeout=20))
    one.join()
"""
    assert run(sent(notebook, code, variables={"x": 7})).out == "7 __mp_main__\n"


def test_a_cell_that_another_cell_ordered_is_found_as_itself(notebook: Path) -> None:
    outer = sent(notebook, "raise SystemExit('outer')\n", target="outer").directory
    bundle = sent(notebook, SPAWNING, variables={"x": 1, "lr": 2, "KIND": "spawn"})
    environ = {
        "PYTHONPATH": str(outer / "again"),
        "DANLU_CELL": str(outer),
        "DANLU_CELL_ARGUMENTS": '["--x", "5"]',
    }
    done = run(bundle, environ=environ)
    assert (done.code, done.err) == (0, "")


def test_what_starts_its_program_once_more_gets_the_cell_again_and_gives_once(
    notebook: Path,
) -> None:
    # As Lightning does for the further processes of one machine; here after the first has given.
    code = """
import atexit, os, subprocess, sys
import __main__
child = os.environ.get("CHILD", "")
if not child:
    words = [sys.executable, "-m", __main__.__spec__.name, *sys.argv[1:]]
    environ = {**os.environ, "CHILD": "1"}
    atexit.register(lambda: subprocess.run(words, check=True, env=environ))
value = x, lr, child
print(*value, flush=True)
"""
    bundle = sent(notebook, code, variables={"x": 1}, returns=("value",), sweep=("lr=1",))
    done = run(bundle, "--lr", "2")
    assert (done.err, done.out) == ("", "1 2 \n1 2 1\n")
    assert returned(done.result(), ["value"]) == {"value": (1, 2, "")}


def test_only_the_first_of_a_launchers_processes_gives_its_variables(notebook: Path) -> None:
    bundle = sent(notebook, "import os\nrank = os.environ['LOCAL_RANK']\n", returns=("rank",))
    assert run(bundle, environ={"LOCAL_RANK": "1"}).value is None
    assert returned(run(bundle, environ={"LOCAL_RANK": "0"}).result(), ["rank"]) == {"rank": "0"}


def test_of_a_launchers_processes_the_first_failure_is_kept(notebook: Path) -> None:
    bundle = sent(notebook, "import os\nraise OSError(os.environ['LOCAL_RANK'])\n")
    assert run(bundle, environ={"LOCAL_RANK": "1"}).raised["message"] == "1"
    assert run(bundle, environ={"LOCAL_RANK": "0"}).raised["message"] == "1"
    again = {"LOCAL_RANK": "0", "TORCHELASTIC_RESTART_COUNT": "1"}
    assert run(bundle, environ=again).raised["message"] == "0"


def test_danlu_reports_where_it_is_not_installed(notebook: Path) -> None:
    bundle = sent(notebook, "import danlu\ndanlu.report(loss=1)\nprint(danlu.__file__)\n")
    # Without site-packages nothing is installed.
    words = [sys.executable, "-S", "-E", str(bundle.directory / "run.py")]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=30, cwd=notebook
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{bundle.directory / 'last' / 'danlu.py'}\n"


def test_where_danlu_is_installed_it_is_that_one(notebook: Path) -> None:
    done = run(sent(notebook, "import danlu\nprint(danlu.__file__)\n"))
    assert Path(done.out.strip()).name == "__init__.py"


def test_a_file_of_the_working_directory_shadows_no_standard_module(notebook: Path) -> None:
    results = notebook.with_name("sent-results")
    results.mkdir()
    (results / "colorsys.py").write_text("raise SystemExit(9)\n")
    (results / "beside.py").write_text("name = 'beside'\n")
    done = run(sent(notebook, "import colorsys, beside\nprint(beside.name)\n"))
    assert (done.code, done.out) == (0, "beside\n")


# -- returned -------------------------------------------------------------------------------------


def test_what_is_returned_comes_back(notebook: Path) -> None:
    code = "class Net:\n    def __init__(self): self.w = [1, 2]\n\nnet, loss = Net(), 0.5\n"
    done = run(sent(notebook, code, returns=("net", "loss")))
    found = returned(done.result(), ["net", "loss"])
    assert (found["net"].w, found["loss"]) == ([1, 2], 0.5)


def test_an_object_of_the_notebooks_own_class_comes_back_as_one(notebook: Path) -> None:
    class Point:
        x = 1

    Point.__module__ = "__main__"
    bundle = sent(notebook, "p.x = 2\n", variables={"p": Point()}, returns=("p",))
    found = returned(run(bundle).result(), ["p"])
    assert (type(found["p"]), found["p"].x) == (Point, 2)


def test_exiting_with_0_returns_what_was_set(notebook: Path) -> None:
    done = run(sent(notebook, "import sys\nx = 1\nsys.exit(0)\n", returns=("x",)))
    assert (done.code, returned(done.result(), ["x"])) == (0, {"x": 1})


def test_a_variable_that_was_never_set_is_named_with_the_nearest(notebook: Path) -> None:
    code = "losses = [1]\nif not losses:\n    lossses = 1\n"
    done = run(sent(notebook, code, returns=("lossses",)))
    assert (done.code, done.value) == (1, None)
    assert "the cell has no variable lossses to return" in done.err
    assert "did you mean losses?" in done.err
    assert "Traceback" not in done.err
    assert done.raised["refused"]


def test_of_every_replica_what_it_has_comes_back(notebook: Path) -> None:
    code = "rank = 1\nif rank == 0:\n    model = 1\n"
    done = run(sent(notebook, code, returns=("rank", "model"), every=True))
    assert (done.code, done.err) == (0, "")
    assert pickle.loads(done.value or b"")["values"].keys() == {"rank"}


def test_a_returned_lock_is_refused_by_its_place_in_the_variable(notebook: Path) -> None:
    code = "import threading\nstate = {'a': [1, threading.Lock()]}\n"
    done = run(sent(notebook, code, returns=("state",)))
    assert done.code == 1
    assert (
        "state cannot be returned: cannot pickle '_thread.lock' object (state['a'][1])" in done.err
    )


def test_what_is_returned_has_a_limit_that_is_told_with_the_size(notebook: Path) -> None:
    bundle = sent(notebook, "x = bytes(3 << 20)\n", returns=("x",), limits=Limits(one=1 << 20))
    done = run(bundle)
    assert (done.code, done.value) == (1, None)
    assert "x cannot be returned: it takes 3.0 MiB, and 1.0 MiB are allowed" in done.err
    assert "hint: write it to a file" in done.err


# -- raised ---------------------------------------------------------------------------------------


def test_a_traceback_has_the_cells_lines_and_none_of_danlus(notebook: Path) -> None:
    code = "\n\ndef f():\n    raise ValueError('bad')\n\nf()\n"
    done = run(sent(notebook, code))
    assert done.code == 1
    assert done.err == (
        "Traceback (most recent call last):\n"
        "  cell, line 6, in <module>\n    f()\n"
        "  cell, line 4, in f\n    raise ValueError('bad')\n"
        "ValueError: bad\n"
    )
    told = done.raised
    assert (told["type"], told["message"], told["line"]) == ("ValueError", "bad", 4)
    assert told["text"] == done.err


def test_the_line_is_the_cells_own_where_a_library_raised(notebook: Path) -> None:
    done = run(sent(notebook, "import json\n\njson.loads('{')\n"))
    assert done.raised["line"] == 3


def test_a_traceback_names_local_modules_by_their_own_path(notebook: Path) -> None:
    (notebook / "helper.py").write_text("def f():\n    raise KeyError(1)\n")
    done = run(sent(notebook, "import helper\nhelper.f()\n", path=[str(notebook)]))
    assert '  File "helper.py", line 2, in f\n' in done.err


def test_causes_are_shown_as_python_shows_them(notebook: Path) -> None:
    code = (
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('x') from error\n"
    )
    err = run(sent(notebook, code)).err
    assert err.count("  cell, line ") == 2
    assert "The above exception was the direct cause of the following exception" in err
    assert "danlu_guest" not in err


def test_an_exception_group_is_shown_and_sent_whole(notebook: Path) -> None:
    done = run(sent(notebook, "raise ExceptionGroup('two', [ValueError(1), KeyError('k')])\n"))
    assert "ExceptionGroup: two (2 sub-exceptions)" in done.err
    error = pickle.loads(done.raised["error"]["data"])
    assert [type(one) for one in error.exceptions] == [ValueError, KeyError]


def test_an_exception_of_the_cells_own_class_is_sent(notebook: Path) -> None:
    done = run(sent(notebook, "class Odd(Exception): pass\nraise Odd(3)\n"))
    error = pickle.loads(done.raised["error"]["data"])
    assert (type(error).__name__, error.args) == ("Odd", (3,))


@pytest.mark.parametrize(
    "code",
    [
        "class Odd(Exception):\n"
        "    def __init__(self, a, b): super().__init__(a)\n\nraise Odd(1, 2)\n",
        "import threading\nraise ValueError(threading.Lock())\n",
        "raise ValueError('x' * (2 << 20))\n",
    ],
    ids=["cannot be made again", "cannot be pickled", "too large"],
)
def test_an_exception_that_cannot_be_sent_is_told_by_its_text(notebook: Path, code: str) -> None:
    done = run(sent(notebook, code))
    assert done.code == 1
    assert done.raised["error"] is None
    assert "Traceback" in done.raised["text"]
    assert len(done.raised["message"]) <= 4096


def test_a_huge_traceback_is_printed_whole_and_sent_with_its_ends(notebook: Path) -> None:
    code = (
        "import sys\nsys.setrecursionlimit(5000)\ndef f(n):\n    return g(n)\n"
        "def g(n):\n    return f(n - 1) if n else 1 / 0\nf(2000)\n"
    )
    done = run(sent(notebook, code))
    assert done.err.count("cell, line 4, in f") == 2001
    text = done.raised["text"]
    assert len(text) < 70_000
    assert text.startswith("Traceback")
    assert text.endswith("ZeroDivisionError: division by zero\n")
    assert "characters are left out here" in text


def test_a_message_that_cannot_be_had_does_no_harm(notebook: Path) -> None:
    code = "class Odd(Exception):\n    def __str__(self): raise KeyError\nraise Odd\n"
    done = run(sent(notebook, code))
    assert (done.code, done.raised["type"]) == (1, "Odd")


@pytest.mark.parametrize(
    ("call", "code", "err"),
    [("3", 3, ""), ("'no data'", 1, "no data\n"), ("None", 0, ""), ("False", 0, "")],
)
def test_the_exit_code_is_the_cells_own(notebook: Path, call: str, code: int, err: str) -> None:
    done = run(sent(notebook, f"import sys\n\nsys.exit({call})\n"))
    assert (done.code, done.err) == (code, err)
    assert done.raised.get("type") == ("SystemExit" if code else None)
    assert done.raised.get("line") == (3 if code else None)


def test_an_interrupt_ends_as_a_shell_tells_it(notebook: Path) -> None:
    done = run(sent(notebook, "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\ninput()\n"))
    assert done.code == 128 + signal.SIGINT
    assert done.raised["type"] == "KeyboardInterrupt"
    assert done.err.endswith("KeyboardInterrupt\n")


def test_a_syntax_error_that_only_the_replica_finds_has_the_cells_line(notebook: Path) -> None:
    bundle = sent(notebook, "x = 1\n")
    (bundle.directory / "cell" / "cell.py").write_text("x = 1\n\nx = = 2\n")
    done = run(bundle)
    assert done.code == 1
    assert done.err.startswith("  cell, line 3\n")
    assert (done.raised["type"], done.raised["line"]) == ("SyntaxError", 3)


def test_the_cells_own_hook_is_what_prints(notebook: Path) -> None:
    code = "import sys\nsys.excepthook = lambda *one: print('mine', one[1])\n1 / 0\n"
    done = run(sent(notebook, code))
    assert (done.code, done.out, done.err) == (1, "mine division by zero\n", "")
    assert done.raised["line"] == 3


# -- versions -------------------------------------------------------------------------------------


def altered(directory: Path, **changes: object) -> None:
    file = directory / "order.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_another_python_is_refused_before_anything_is_read(notebook: Path) -> None:
    bundle = sent(notebook, "print('never')\n", variables={"f": lambda: 1, "plain": [1]})
    altered(bundle.directory, python="2.9.1")
    (bundle.directory / "values" / "f.pickle").write_bytes(b"no pickle")
    done = run(bundle)
    here = ".".join(map(str, sys.version_info[:3]))
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "danlu: f cannot be sent between these versions\n"
        f"  Python: 2.9.1 in the notebook, {here} in the environment of the job\n"
        "hint: give the job an environment with the notebook's versions,"
        " or send plain numbers, texts and lists\n"
    )
    assert done.raised["refused"]


def test_plain_values_are_read_by_another_python(notebook: Path) -> None:
    bundle = sent(notebook, "print(x)\n", variables={"x": {"a": [1, 2.0, None, {"s"}]}})
    altered(bundle.directory, python="3.99.0")
    assert run(bundle).out == "{'a': [1, 2.0, None, {'s'}]}\n"


def test_another_version_of_a_library_is_refused_by_its_name(
    notebook: Path, tmp_path: Path
) -> None:
    library(tmp_path / "here", "2.1.0")
    library(tmp_path / "there", "1.26.4")
    bundle = made_by("import lib8a\nx = lib8a.Box()", notebook, tmp_path / "here")
    for found, expected in (("here", "box\n"), ("there", "")):
        done = run(bundle, environ={"PYTHONPATH": str(tmp_path / found / "site-packages")})
        assert done.out == expected
    assert "  lib8a: 2.1.0 in the notebook, 1.26.4 in the environment of the job\n" in done.err
    absent = run(bundle)
    assert "  lib8a: 2.1.0 in the notebook, not there in the environment" in absent.err


def library(place: Path, version: str) -> None:
    """A distribution ``lib8a``, installed below ``place/site-packages``."""
    site = place / "site-packages"
    (site / f"lib8a-{version}.dist-info").mkdir(parents=True)
    told = f"Metadata-Version: 2.1\nName: lib8a\nVersion: {version}\n"
    (site / f"lib8a-{version}.dist-info" / "METADATA").write_text(told)
    (site / "lib8a.py").write_text("class Box:\n    def __str__(self): return 'box'\n")


def made_by(code: str, notebook: Path, place: Path) -> Bundle:
    """The bundle that a process with the library of ``place`` makes, and sends ``x``."""
    program = (
        f"{code}\nimport pathlib, sys\nfrom tests.guest.sent import sent\n"
        f"sent(pathlib.Path({str(notebook)!r}), 'print(x)\\n', variables={{'x': x}})\n"
    )
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(place / "site-packages"), str(root), *sys.path])
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": paths},
    )
    return Bundle(notebook.with_name("sent"))


def test_a_value_whose_module_is_not_there_says_so(notebook: Path) -> None:
    bundle = sent(notebook, "print(x)\n", variables={"x": 1})
    (bundle.directory / "values" / "x.pickle").write_bytes(b"cno_such_module\nBox\n.")
    done = run(bundle)
    assert done.code == 1
    assert "x, which the notebook sent, cannot be read in the environment of the job" in done.err
    assert "ModuleNotFoundError: No module named 'no_such_module'" in done.err


@pytest.mark.parametrize("name", GUESTS)
def test_a_guest_keeps_to_the_words_of_old_pythons_and_to_its_neighbours(name: str) -> None:
    source = (Path(guest.__file__).parent / f"{name}.py").read_text()
    tree = ast.parse(source, feature_version=(3, 6))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = {str(node.module).partition(".")[0]}
        else:
            continue
        assert names <= sys.stdlib_module_names
        assert "__future__" not in names
