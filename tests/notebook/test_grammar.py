"""Which cells are jobs, what they say, and that nothing else of them changes."""

from __future__ import annotations

import pytest

from danlu.errors import UsageError
from danlu.notebook.grammar import asks_help, read_cell, read_options
from danlu.notebook.types import Cell, CellOrder, Role


def job(text: str) -> Cell:
    cell = read_cell(text)
    assert cell is not None
    return cell


def refusal(text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read_cell(text)
    return caught.value


def option_refusal(line: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read_options(line, "x\n")
    return caught.value


TENSORFLOW = """\
%framework=tensorflow
%ps=1;%cpu=500m;%memory=1Gi
%worker=2
%cleanPolicy=running

import os

print(os.environ["TF_CONFIG"])
"""


def test_a_cell_in_ciaos_words_is_a_job() -> None:
    cell = job(TENSORFLOW)
    assert cell.order == CellOrder(
        framework="tensorflow",
        roles={"ps": Role(1, "500m", "1Gi"), "worker": Role(2)},
        clean="Running",
    )
    assert cell.code == '\n\n\n\n\nimport os\n\nprint(os.environ["TF_CONFIG"])\n'


# -- what is no job -------------------------------------------------------------------------------

ORDINARY = {
    "nothing": "",
    "code": "x = 1\n",
    "a magic": "%matplotlib inline\n",
    "a magic with a setting": "%config InlineBackend.figure_format = 'retina'\n",
    "a variable": "%env FOO=1\n",
    "a variable by another magic": "%set_env worker=2\n",
    "a variable with a slip": "%env=FOO=1\nprint(1)\n",
    "a variable with a blank": "%env FOO =1\n",
    "a timed assignment": "%time worker=2\n",
    "a timed comparison": "%timeit framework==2\n",
    "a run with options": "%run train.py --worker=2 --framework=pytorch\n",
    "an extension": "%load_ext danlu.notebook\n",
    "the magics of danlu": "%jobs attach mnist-2\n%danlu build\n",
    "a command": "!echo %worker=2\n",
    "a command's result": "x = !echo %worker=2\n",
    "a magic's result": "x = %env worker=2\n",
    "a magic called as a key": "%name\n%worker 2\n%detach\n",
    "a magic called as a key, with a strange argument": "%name = 5\n%cpu = x\n",
    "a question": "%worker?\n?%framework\n",
    "a comment": "# %framework=pytorch\n#%worker=2\n",
    "a string": "x = '%framework=pytorch'\n",
    "lines in a string": 'doc = """\n%framework=pytorch\n%worker=2\n"""\n',
    "lines in a formatted string": "f'''{x}\n%framework=pytorch\n'''\n",
    "an operator in brackets": "x = (total\n%worker)\n",
    "a comparison in brackets": "x = (total\n%worker==2)\n",
    "a format with an operator": 'print("%d"\n%worker)\n',
    "a keyword after an operator": "f(a\n%framework,b=1)\n",
    "an operator after a backslash": "x = 17 \\\n%worker\n",
    "a continued command": "!python train.py \\\n%worker=2\n",
    "a continued magic": "%run train.py \\\n%framework=pytorch\n",
    "a script": "%%bash\n%worker=2\n%framework=pytorch\n",
    "a script after empty lines": "\n  \n%%bash\n%worker=2\n",
    "an indented script": "  %%bash\n  %worker=2\n",
    "a script after a comment": "# run\n%%bash\n%worker=2\n",
    "a file": "%%writefile cell.py\n%framework=pytorch\n%worker=2\n",
    "a timed cell": "%%timeit\n%worker=2\n",
    "options": "%%distributed --framework pytorch\nx = 1\n",
    "an unknown magic with an equals sign": "%zzz=1\n",
    "a blank after the sign": "% worker=2\n",
    "a key not at the beginning": "x = 1; %worker=2\n",
    "a comparison": "%worker==2\n",
    "a number": "%2=3\n",
    "only a sign": "%=1\n",
}


@pytest.mark.parametrize("text", ORDINARY.values(), ids=ORDINARY.keys())
def test_what_looks_like_a_key_but_is_not_is_left_alone(text: str) -> None:
    assert read_cell(text) is None
    assert read_cell(text.replace("\n", "\r\n")) is None


#: What a job's cell has no place for: more magics of whole cells, and what only a key can be.
REFUSED = ("%%", "%name", "%env=FOO=1", "%zzz=1")
KEPT = {name: text for name, text in ORDINARY.items() if not any(one in text for one in REFUSED)}


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT.keys())
def test_a_job_keeps_what_looks_like_a_key(text: str) -> None:
    assert job("%cpu=3\n" + text).code == "\n" + text


def test_ordinary_cells_cost_no_look_at_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> None:
        raise AssertionError

    monkeypatch.setattr("danlu.training.registry.frameworks", look)
    assert read_cell("%matplotlib inline\nx = 1\n") is None
    assert read_cell("%env FOO=1\n") is None


# -- how keys are written -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "%framework=pytorch\n%worker=2;%cpu=1;%memory=2Gi",
        "%framework = pytorch \n%worker\t=\t2 ; %cpu = 1 ;\t%memory =2Gi  ",
        "%Framework=PyTorch\n%WORKER=2;%CPU=1;%Memory=2Gi",
        "%framework=pytorch;%worker=2;%cpu=1;%memory=2Gi",
        "%worker=2;%memory=2Gi;%cpu=1;\n%framework=pytorch;",
        "%worker=2;cpu=1;memory=2Gi\n%framework=torch",
        "%kubeflow framework=pytorch\n%kubeflow worker=2;%cpu=1;%memory=2Gi",
        "x = 1\n%worker=2;%cpu=1;%memory=2Gi\n\ny = 2\n%framework=pytorch",
        "# first\n\n%framework=pytorch\n%worker=2;%cpu=1;%memory=2Gi",
    ],
)
def test_one_order_may_be_written_in_many_ways(text: str) -> None:
    assert job(text).order == CellOrder(framework="pytorch", roles={"worker": Role(2, "1", "2Gi")})


@pytest.mark.parametrize("word", ["cleanPolicy", "cleanpolicy", "CLEANPOLICY", "clean-policy"])
@pytest.mark.parametrize("value", ["running", "Running", "RUNNING"])
def test_the_letter_case_of_the_clean_policy_does_not_count(word: str, value: str) -> None:
    assert job(f"%{word}={value}\n%worker=1").order.clean == "Running"


def test_shares_belong_to_the_replica_type_on_their_line() -> None:
    order = job("%ps=1;%cpu=1;%worker=2;%gpu=1;%cpu=2\n%cpu=4\n%gpu=0").order
    assert order.roles == {"ps": Role(1, "1"), "worker": Role(2, "2", gpu=1)}
    assert (order.cpu, order.gpu) == ("4", 0)


def test_a_share_belongs_to_its_type_past_another_key() -> None:
    order = job("%worker=2;%framework=pytorch;%cpu=1").order
    assert order.roles == {"worker": Role(2, "1")}
    assert order.cpu == ""


def test_a_value_may_hold_what_separates_others() -> None:
    order = job("%worker=1\n%env=A=x; y=%z\n%env=B=1;%worker\n%env=C=;;a").order
    assert order.variables == {"A": "x; y=%z", "B": "1;%worker", "C": ";;a"}


def test_an_environment_is_a_variable_or_a_build_file() -> None:
    order = job("%worker=1\n%env=A=1\n%env=images/build.envd:gpu\n%env=B=a=b").order
    assert order.variables == {"A": "1", "B": "a=b"}
    assert order.env == "images/build.envd:gpu"


def test_what_is_wanted_needs_no_value() -> None:
    assert job("%worker=1\n%detach\n").order.detach
    assert not job("%worker=1\n%detach=no\n").order.detach


def test_one_key_makes_a_job() -> None:
    assert job("%cpu=1\nimport torch\n").order == CellOrder(cpu="1")


# -- byte for byte --------------------------------------------------------------------------------

BYTES = {
    "empty lines": "%worker=1\n\n\n\nx = 1\n\n",
    "no end": "%worker=1\nx = 1",
    "only keys, without an end": "%worker=1",
    "crlf": "%worker=1\r\n\r\nx = 1\r\n",
    "cr": "%worker=1\r\rx = 1\r",
    "mixed ends": "x\r\n%worker=1\ny\r%cpu=1\r\nz",
    "blanks": "%worker=1 \nx = 1  \n\t\n  \n",
    "tabs": "%worker=1\t\nif x:\n\ty\t\n",
    "form feeds": "%worker=1\n\f\nx\f\n\x0b\n",
    "separators that are no ends": "%worker=1\nx = '\x1c\x85\u2028'\n",
    "letters of the world": "%worker=1\nπ = '炉 é 🜂'\n",
    "a half of a character": "%worker=1\nx = '\ud800'\n",
    "a null": "%worker=1\nx\0\n",
    "keys in a string": '%worker=1\nx = """\n%worker=2\n\n"""\n',
    "code that is none": "%worker=1\n((\n'''\n",
}


@pytest.mark.parametrize("text", BYTES.values(), ids=BYTES.keys())
def test_everything_but_keys_stays(text: str) -> None:
    before, after = text.split("%worker=1", 1)
    blanks = after[: len(after) - len(after.lstrip(" \t"))]
    expected = (before + after[len(blanks) :]).replace("\r%cpu=1\r\n", "\r\r\n")
    assert job(text).code == expected


def test_no_line_moves_up_where_ends_of_lines_are_mixed() -> None:
    assert job("x\r%worker=1\ny\r\n").code == "x\r\r\ny\r\n"


# -- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("%framwork=pytorch\nx", "line 1: %framwork is no key", "did you mean %framework?"),
        ("x\n%wroker=2\n", "line 2: %wroker is no key", "did you mean %worker?"),
        ("%workers=2", "line 1: %workers is no key", "did you mean %worker?"),
        ("%worker=2\n%memroy=1Gi", "line 2: %memroy is no key", "did you mean %memory?"),
        (
            "%worker=2\n%tuner_traker=1",
            "line 2: %tuner_traker is no key",
            "did you mean %tuner-tracker?",
        ),
        (
            "%worker=2\n%zzz=1",
            "line 2: %zzz is no key",
            "`%%distributed --help` lists all keys",
        ),
        ("%worker=2\n%zzz = 1", "line 2: %zzz is no key", "`%%distributed --help` lists all keys"),
        ("%worker=2\n\n%worker=3", "line 3: %worker was said on line 1 already", "say it once"),
        ("%cpu=2;%cpu=3", "line 1: %cpu was said already", "say it once"),
        ("%worker=2;%cpu=2;%cpu=3", "line 1: %worker: cpu was said already", "say it once"),
        (
            "%worker=1\n%env=A=1\n%env=A=2",
            "line 3: the variable A was said on line 2 already",
            "say it once",
        ),
        (
            "%cleanPolicy=all\n%clean=none",
            "line 2: %clean was said on line 1 already",
            "say it once",
        ),
        ("%worker=1\n  %cpu=1", "line 2: %cpu is indented", "keys stand where their line begins"),
        ("  %framework=pytorch", "line 1: %framework is indented", "keys stand where their line"),
        ("%name=x\\\n%worker=1", "line 1: %name ends with a backslash", "a key is one line"),
        ("%worker=1\n%cpu 2", "line 2: %cpu has no =", "write %cpu=2"),
        ("%framework=pytorch\n%worker 2", "line 2: %worker has no =", "write %worker=2"),
        ("%framework=pytorch\n%worker", "line 2: %worker has no =", "write %worker=2"),
        ("%worker=1\n%detach now", "line 2: %detach has no =", "write %detach=now"),
        ("%worker=", "line 1: %worker: '' is no whole number", "0 or more"),
        ("%name=\n%worker=1", "line 1: %name: it has no value", "one like mnist-2"),
        (
            "%worker=2 # two",
            "line 1: %worker: '2 # two' is no whole number",
            "a comment needs a line of its own",
        ),
        (
            "%cpu=1;%worker=2",
            "line 1: %cpu stands before %worker",
            "write %worker=2;%cpu=…",
        ),
        (
            "%worker=2;%name=x;%disk=1Gi",
            "line 1: %disk is no key",
            "`%%distributed --help` lists all keys",
        ),
        (
            "%worker=2;3",
            "line 1: %worker: '3' does not belong to a replica type",
            "after worker and a number: ;%cpu=1;%memory=2Gi;%gpu=1",
        ),
        (
            "%worker=2;name=x",
            "line 1: %worker: 'name=x' does not belong to a replica type",
            "after worker and a number: ;%cpu=1;%memory=2Gi;%gpu=1",
        ),
        ("%worker=2;%cpu=a", "line 1: %worker: 'a' is no amount", "as 2, 500m or 4Gi are"),
        (
            "%framework=pytorch\n%ps=1",
            "line 2: pytorch has no replicas of type ps",
            "it has %master, %worker",
        ),
        (
            "%framework=pytoch\n%worker=2",
            "line 1: %framework: no framework is called 'pytoch'",
            "did you mean pytorch? danlu knows",
        ),
        (
            "%worker=1\n%metric=loss",
            "line 2: %metric is of a sweep",
            "say what to sweep: %sweep=lr",
        ),
        (
            "%worker=1\n%every=true",
            "line 2: every replica returns nothing",
            "name what comes back: %return=losses",
        ),
        (
            "%image=a\n%worker=1\n%env=build.envd",
            "line 3: %image and %env exclude each other",
            "give one of them",
        ),
        (
            "%worker=1\n%sweep=a=0.1:0.5",
            "line 2: how fine is a to be swept?",
            "give a step, like a=0.1:0.5:0.1",
        ),
        (
            "%worker=1\n%sweep=a=1,2\n%sweep=a=3",
            "line 2: a is swept twice",
            "give all its values once: a=A,B,C",
        ),
        (
            "%detach=yes\n%worker=1\n%sweep=a=1,2",
            "line 3: %detach and %sweep exclude each other",
            "give one of them",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, message: str, hint: str) -> None:
    error = refusal(text)
    assert error.message == message
    assert error.hint.startswith(hint)
    line = int(message.split()[1].rstrip(":"))
    assert error.span is not None
    assert error.span.line == line
    assert error.source_line == text.splitlines()[line - 1]


def test_all_that_is_wrong_is_told_at_once() -> None:
    error = refusal("%framework=pytorch\n%wroker=2\n%ps=1\n%cpu=a\n")
    assert error.message == "line 2: %wroker is no key"
    assert error.details == (
        "line 3: pytorch has no replicas of type ps (it has %master, %worker)",
        "line 4: %cpu: 'a' is no amount (as 2, 500m or 4Gi are)",
    )


def test_a_magic_in_a_jobs_cell_is_left_to_the_check_of_its_code() -> None:
    assert (
        job("%worker=1\n%matplotlib inline\n%env A=1\n").code == "\n%matplotlib inline\n%env A=1\n"
    )


# -- options --------------------------------------------------------------------------------------


def test_options_say_the_same() -> None:
    cell = read_options(
        '--framework tensorflow --ps "1;cpu=500m;memory=1Gi" --worker=2 --clean-policy running',
        "x = 1\n",
    )
    assert cell.order == job(TENSORFLOW).order
    assert cell.code == "\nx = 1\n"


@pytest.mark.parametrize(
    "line",
    [
        "--framework pytorch --worker '2;cpu=1;memory=2Gi'",
        "--framework=pytorch --worker='2;%cpu=1;%memory=2Gi'",
        '--FRAMEWORK torch --Worker "2 ; cpu = 1 ; memory = 2Gi"',
        "--worker 2\\;memory=2Gi\\;cpu=1 --framework PyTorchJob",
    ],
)
def test_options_may_be_written_in_many_ways(line: str) -> None:
    expected = CellOrder(framework="pytorch", roles={"worker": Role(2, "1", "2Gi")})
    assert read_options(line, "").order == expected


def test_options_without_a_value_say_yes() -> None:
    order = read_options("--every --return x --detach=false --worker 2", "").order
    assert order.every
    assert not order.detach


def test_options_are_quoted_as_for_a_shell() -> None:
    order = read_options("-e 'A=x  y; \"z\"' --env B=\\ 1 --env=C= -v 'my data:/data:ro'", "").order
    assert order.variables == {"A": 'x  y; "z"', "B": " 1", "C": ""}
    assert order.volumes == ("my data:/data:ro",)


def test_no_option_is_an_order_too() -> None:
    assert read_options("", "import torch\n") == Cell(CellOrder(), "\nimport torch\n")


@pytest.mark.parametrize("body", ["", "x", "x\r\n\r\n", "\n\nx\t \n", "%worker=2\n", "\f\u2028x"])
def test_the_body_stays_below_one_line(body: str) -> None:
    assert read_options("--worker 1", body).code == "\n" + body


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("--framwork pytorch", "--framwork is no option", "did you mean --framework?"),
        ("--worker", "--worker: '' is no whole number", "0 or more"),
        ("--worker --cpu 2", "--worker: '' is no whole number", "0 or more"),
        ("--name --worker 2", "--name: it has no value", "one like mnist-2"),
        ("pytorch", "'pytorch' is no option", "options are --key value; --help lists them"),
        ("worker=2", "'worker' is no option", "did you mean --worker?"),
        ("-worker 2", "'-worker' is no option", "did you mean --worker?"),
        ("%worker=2", "'%worker' is no option", "did you mean --worker?"),
        ("-x 2", "'-x' is no option", "options are --key value; --help lists them"),
        ("-- x", "'--' is no option", "options are --key value; --help lists them"),
        ("--name 'x", "No closing quotation", "close the quotes"),
        ("--worker 2 --worker 3", "--worker was said already", "say it once"),
        ("--metric loss", "--metric is of a sweep", "say what to sweep: --sweep lr=0.1,0.01"),
        ("--every", "every replica returns nothing", "name what comes back: --return losses"),
        (
            "--framework pytorch --ps 2",
            "pytorch has no replicas of type ps",
            "it has --master, --worker",
        ),
        (
            "--image a --env build.py",
            "--env and --image exclude each other",
            "give one of them",
        ),
    ],
)
def test_wrong_options_are_told(line: str, message: str, hint: str) -> None:
    error = option_refusal(line)
    assert error.message == f"line 1: {message}"
    assert error.hint == hint
    assert error.source_line == line


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("-h", True),
        ("--worker 2 --help", True),
        ("", False),
        ("--name help", False),
        ("--name '-h", False),
    ],
)
def test_help_may_be_asked_for(line: str, asked: bool) -> None:
    assert asks_help(line) is asked
