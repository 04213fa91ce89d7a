"""A cell that was sent runs as a script would, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from danlu.notebook.values import returned
from tests.guest.sent import run, sent


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
