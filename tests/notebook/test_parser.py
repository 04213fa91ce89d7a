"""Which cells are jobs, how their options are parsed, and that their code is unchanged."""

from __future__ import annotations

import pytest

from danlu.errors import UsageError
from danlu.notebook.cell_code import parse_code
from danlu.notebook.parser import is_help_request, parse_cell, parse_distributed
from danlu.notebook.types import Cell, CellOptions, ReplicaOptions


def job(text: str) -> Cell:
    cell = parse_cell(text)
    assert cell is not None
    return cell


def refusal(text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse_cell(text)
    return caught.value


def option_refusal(line: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse_distributed(line, "x\n")
    return caught.value


TENSORFLOW = """\
%framework=tensorflow
%ps=1;%cpu=500m;%memory=1Gi
%worker=2
%cleanPolicy=running

import os

print(os.environ["TF_CONFIG"])
"""


def test_cell_with_directives_is_a_job() -> None:
    cell = job(TENSORFLOW)
    assert cell.options == CellOptions(
        framework="tensorflow",
        replicas={"ps": ReplicaOptions(1, "500m", "1Gi"), "worker": ReplicaOptions(2)},
        clean_pod_policy="Running",
    )
    assert cell.code == '\n\n\n\n\nimport os\n\nprint(os.environ["TF_CONFIG"])\n'


# -- ordinary cells ------------------------------------------------------------------------------

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
def test_ordinary_cell_is_not_a_job(text: str) -> None:
    assert parse_cell(text) is None
    assert parse_cell(text.replace("\n", "\r\n")) is None


#: Not allowed in job cells: further cell magics, and lines that can only be directives.
REFUSED = ("%%", "%name", "%env=FOO=1", "%zzz=1")
KEPT = {name: text for name, text in ORDINARY.items() if not any(part in text for part in REFUSED)}


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT.keys())
def test_text_similar_to_directives_is_kept_in_the_code(text: str) -> None:
    assert job("%cpu=3\n" + text).code == "\n" + text


def test_ordinary_cells_do_not_load_framework_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> None:
        raise AssertionError

    monkeypatch.setattr("danlu.training.registry.list_frameworks", look)
    assert parse_cell("%matplotlib inline\nx = 1\n") is None
    assert parse_cell("%env FOO=1\n") is None


# -- syntax of directives -------------------------------------------------------------------------


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
        "%matplotlib inline\n%worker=2;%cpu=1;%memory=2Gi\n# next\n%framework=pytorch",
        "# first\n\n%framework=pytorch\n%worker=2;%cpu=1;%memory=2Gi",
    ],
)
def test_directives_can_be_spelled_in_many_ways(text: str) -> None:
    assert job(text).options == CellOptions(
        framework="pytorch", replicas={"worker": ReplicaOptions(2, "1", "2Gi")}
    )


@pytest.mark.parametrize("word", ["cleanPolicy", "cleanpolicy", "CLEANPOLICY", "clean-policy"])
@pytest.mark.parametrize("value", ["running", "Running", "RUNNING"])
def test_clean_policy_is_case_insensitive(word: str, value: str) -> None:
    assert job(f"%{word}={value}\n%worker=1").options.clean_pod_policy == "Running"


def test_resources_belong_to_the_replica_type_on_their_line() -> None:
    order = job("%ps=1;%cpu=1;%worker=2;%gpu=1;%cpu=2\n%cpu=4\n%gpu=0").options
    assert order.replicas == {"ps": ReplicaOptions(1, "1"), "worker": ReplicaOptions(2, "2", gpu=1)}
    assert (order.cpu, order.gpu) == ("4", 0)


def test_resources_may_follow_after_another_option() -> None:
    order = job("%worker=2;%framework=pytorch;%cpu=1").options
    assert order.replicas == {"worker": ReplicaOptions(2, "1")}
    assert order.cpu == ""


def test_values_may_contain_separators() -> None:
    order = job("%worker=1\n%env=A=x; y=%z\n%env=B=1;%worker\n%env=C=;;a").options
    assert order.environment == {"A": "x; y=%z", "B": "1;%worker", "C": ";;a"}


def test_env_is_a_variable_or_a_build_file() -> None:
    order = job("%worker=1\n%env=A=1\n%env=images/build.envd:gpu\n%env=B=a=b").options
    assert order.environment == {"A": "1", "B": "a=b"}
    assert order.env == "images/build.envd:gpu"


def test_flags_need_no_value() -> None:
    assert job("%worker=1\n%detach\n").options.detach
    assert not job("%worker=1\n%detach=no\n").options.detach


def test_one_directive_makes_a_job() -> None:
    assert job("%cpu=1\nimport torch\n").options == CellOptions(cpu="1")


def test_directives_end_where_the_code_begins() -> None:
    cell = job("%worker=1\nx = 1\n%cpu=2\n")
    assert (cell.options.cpu, cell.code) == ("", "\nx = 1\n%cpu=2\n")
    with pytest.raises(SyntaxError, match="write %cpu=2 above the code"):
        parse_code(cell.code)


# -- byte for byte --------------------------------------------------------------------------------

BYTES = {
    "empty lines": "%worker=1\n\n\n\nx = 1\n\n",
    "no end": "%worker=1\nx = 1",
    "only keys, without an end": "%worker=1",
    "crlf": "%worker=1\r\n\r\nx = 1\r\n",
    "cr": "%worker=1\r\rx = 1\r",
    "mixed ends": "#x\r\n%worker=1\n#y\r%cpu=1\r\nz",
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
def test_everything_but_directives_is_kept_byte_for_byte(text: str) -> None:
    before, after = text.split("%worker=1", 1)
    blanks = after[: len(after) - len(after.lstrip(" \t"))]
    expected = (before + after[len(blanks) :]).replace("\r%cpu=1\r\n", "\r\r\n")
    assert job(text).code == expected


def test_mixed_line_endings_keep_line_numbers() -> None:
    assert job("\r%worker=1\n\ny\r\n").code == "\r\r\n\ny\r\n"


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("%framwork=pytorch\nx", "line 1: unknown option %framwork", "did you mean %framework?"),
        ("# x\n%wroker=2\n", "line 2: unknown option %wroker", "did you mean %worker?"),
        ("x = 1\n%worker=2\n", "line 2: %worker comes after code", "move it to the first lines"),
        ("%workers=2", "line 1: unknown option %workers", "did you mean %worker?"),
        ("%worker=2\n%memroy=1Gi", "line 2: unknown option %memroy", "did you mean %memory?"),
        (
            "%worker=2\n%tuner_traker=1",
            "line 2: unknown option %tuner_traker",
            "did you mean %tuner-tracker?",
        ),
        (
            "%worker=2\n%zzz=1",
            "line 2: unknown option %zzz",
            "`%%distributed --help` lists all options",
        ),
        (
            "%worker=2\n%zzz = 1",
            "line 2: unknown option %zzz",
            "`%%distributed --help` lists all options",
        ),
        ("%worker=2\n\n%worker=3", "line 3: %worker is already set on line 1", "set it only once"),
        ("%cpu=2;%cpu=3", "line 1: %cpu is already set", "set it only once"),
        ("%worker=2;%cpu=2;%cpu=3", "line 1: %worker: cpu is already set", "set it only once"),
        (
            "%worker=1\n%env=A=1\n%env=A=2",
            "line 3: variable A is already set on line 2",
            "set it only once",
        ),
        (
            "%cleanPolicy=all\n%clean=none",
            "line 2: %clean is already set on line 1",
            "set it only once",
        ),
        ("%worker=1\n  %cpu=1", "line 2: %cpu is indented", "start the line with the option"),
        ("  %framework=pytorch", "line 1: %framework is indented", "start the line"),
        (
            "%name=x\\\n%worker=1",
            "line 1: %name ends with a backslash",
            "an option must fit on one line",
        ),
        ("%worker=1\n%cpu 2", "line 2: missing = after %cpu", "write %cpu=2"),
        ("%framework=pytorch\n%worker 2", "line 2: missing = after %worker", "write %worker=2"),
        ("%framework=pytorch\n%worker", "line 2: missing = after %worker", "write %worker=2"),
        ("%worker=1\n%detach now", "line 2: missing = after %detach", "write %detach=now"),
        ("%worker=", "line 1: %worker: invalid whole number ''", "must be 0 or more"),
        ("%name=\n%worker=1", "line 1: %name: requires a value", "for example mnist-2"),
        (
            "%worker=2 # two",
            "line 1: %worker: invalid whole number '2 # two'",
            "put the comment on a separate line",
        ),
        (
            "%cpu=1;%worker=2",
            "line 1: %cpu must follow %worker",
            "write %worker=2;%cpu=…",
        ),
        (
            "%worker=2;%name=x;%disk=1Gi",
            "line 1: unknown option %disk",
            "`%%distributed --help` lists all options",
        ),
        (
            "%worker=2;3",
            "line 1: %worker: invalid resource '3'",
            "after worker and a number write ;%cpu=1;%memory=2Gi;%gpu=1",
        ),
        (
            "%worker=2;name=x",
            "line 1: %worker: invalid resource 'name=x'",
            "after worker and a number write ;%cpu=1;%memory=2Gi;%gpu=1",
        ),
        ("%worker=2;%cpu=a", "line 1: %worker: invalid quantity 'a'", "examples: 2, 500m, 4Gi"),
        (
            "%framework=pytorch\n%ps=1",
            "line 2: pytorch has no replica type ps",
            "it has %master, %worker",
        ),
        (
            "%framework=pytoch\n%worker=2",
            "line 1: %framework: unknown framework 'pytoch'",
            "did you mean pytorch? choose from",
        ),
        (
            "%worker=1\n%metric=loss",
            "line 2: %metric is only valid with %sweep",
            "add %sweep=lr",
        ),
        (
            "%worker=1\n%every=true",
            "line 2: %every requires %return",
            "name the variables to return: %return=losses",
        ),
        (
            "%image=a\n%worker=1\n%env=build.envd",
            "line 3: %image and %env are mutually exclusive",
            "use only one of them",
        ),
        (
            "%worker=1\n%sweep=a=0.1:0.5",
            "line 2: a needs a step",
            "for example a=0.1:0.5:0.1",
        ),
        (
            "%worker=1\n%sweep=a=1,2\n%sweep=a=3",
            "line 2: duplicate parameter a",
            "give all its values at once: a=A,B,C",
        ),
        (
            "%detach=yes\n%worker=1\n%sweep=a=1,2",
            "line 3: %detach and %sweep are mutually exclusive",
            "use only one of them",
        ),
    ],
)
def test_invalid_directives_are_reported_with_their_line(
    text: str, message: str, hint: str
) -> None:
    error = refusal(text)
    assert error.message == message
    assert error.hint.startswith(hint)
    line = int(message.split()[1].rstrip(":"))
    assert error.span is not None
    assert error.span.line == line
    assert error.source_line == text.splitlines()[line - 1]


def test_all_problems_are_reported_together() -> None:
    error = refusal("%framework=pytorch\n%wroker=2\n%ps=1\n%cpu=a\n")
    assert error.message == "line 2: unknown option %wroker"
    assert error.details == (
        "line 3: pytorch has no replica type ps (it has %master, %worker)",
        "line 4: %cpu: invalid quantity 'a' (examples: 2, 500m, 4Gi)",
    )


def test_ipython_magics_are_kept_in_the_code_of_a_job() -> None:
    assert (
        job("%worker=1\n%matplotlib inline\n%env A=1\n").code == "\n%matplotlib inline\n%env A=1\n"
    )


# -- options --------------------------------------------------------------------------------------


def test_options_equal_directives() -> None:
    cell = parse_distributed(
        '--framework tensorflow --ps "1;cpu=500m;memory=1Gi" --worker=2 --clean-policy running',
        "x = 1\n",
    )
    assert cell.options == job(TENSORFLOW).options
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
def test_options_can_be_spelled_in_many_ways(line: str) -> None:
    expected = CellOptions(framework="pytorch", replicas={"worker": ReplicaOptions(2, "1", "2Gi")})
    assert parse_distributed(line, "").options == expected


def test_flags_without_a_value_are_true() -> None:
    order = parse_distributed("--every --return x --detach=false --worker 2", "").options
    assert order.every
    assert not order.detach


@pytest.mark.parametrize(
    ("word", "wanted"), [("true", True), ("false", False), ("No", False), ("yes", True)]
)
def test_flags_accept_an_explicit_boolean(word: str, wanted: bool) -> None:
    order = parse_distributed(f"--return x --every {word} --worker 2", "").options
    assert (order.every, order.replicas["worker"].replicas) == (wanted, 2)
    assert parse_distributed(f"--worker 2 --detach {word}", "").options.detach is wanted


def test_options_are_quoted_as_in_a_shell() -> None:
    order = parse_distributed(
        "-e 'A=x  y; \"z\"' --env B=\\ 1 --env=C= -v 'my data:/data:ro'", ""
    ).options
    assert order.environment == {"A": 'x  y; "z"', "B": " 1", "C": ""}
    assert order.volumes == ("my data:/data:ro",)


def test_distributed_without_options_is_a_job() -> None:
    assert parse_distributed("", "import torch\n") == Cell(CellOptions(), "\nimport torch\n")


@pytest.mark.parametrize("body", ["", "x", "x\r\n\r\n", "\n\nx\t \n", "%worker=2\n", "\f\u2028x"])
def test_body_keeps_its_line_numbers(body: str) -> None:
    assert parse_distributed("--worker 1", body).code == "\n" + body


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("--framwork pytorch", "unknown option --framwork", "did you mean --framework?"),
        ("--worker", "--worker: invalid whole number ''", "must be 0 or more"),
        ("--worker --cpu 2", "--worker: invalid whole number ''", "must be 0 or more"),
        ("--name --worker 2", "--name: requires a value", "for example mnist-2"),
        ("pytorch", "unknown option 'pytorch'", "options are --key value; --help lists them"),
        ("worker=2", "unknown option 'worker'", "did you mean --worker?"),
        ("-worker 2", "unknown option '-worker'", "did you mean --worker?"),
        ("%worker=2", "unknown option '%worker'", "did you mean --worker?"),
        ("-x 2", "unknown option '-x'", "options are --key value; --help lists them"),
        ("-- x", "unknown option '--'", "options are --key value; --help lists them"),
        ("--name 'x", "No closing quotation", "close the quotes"),
        ("--worker 2 --worker 3", "--worker is already set", "set it only once"),
        ("--metric loss", "--metric is only valid with --sweep", "add --sweep lr=0.1,0.01"),
        ("--every", "--every requires --return", "name the variables to return: --return losses"),
        (
            "--framework pytorch --ps 2",
            "pytorch has no replica type ps",
            "it has --master, --worker",
        ),
        (
            "--image a --env build.py",
            "--env and --image are mutually exclusive",
            "use only one of them",
        ),
    ],
)
def test_invalid_options_are_reported(line: str, message: str, hint: str) -> None:
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
def test_help_request_is_recognized(line: str, asked: bool) -> None:
    assert is_help_request(line) is asked
