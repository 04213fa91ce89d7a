"""Properties of every cell: code is unchanged, and both spellings of options are equivalent."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from danlu.errors import UsageError
from danlu.notebook.cell_code import parse_code
from danlu.notebook.options import OPTIONS
from danlu.notebook.parser import parse_cell, parse_distributed, split_lines
from danlu.notebook.types import Cell, CellOptions, ReplicaOptions

# -- any text -------------------------------------------------------------------------------------

PIECES = [
    *("%framework=jax", "%worker=2", "%cpu = 1", "%env=A=%d;", "%zzz=1", "%detach", "%worker 2"),
    *("%matplotlib inline", "!ls '", "%%bash", "%%distributed", "%kubeflow ps=1", "  %name=x"),
    *("x = 1", "x = (", ")", "'''", 'f"""{', "}", "# it's", "\\", "if x:", "\t", "\f", "炉"),
    *("\n", "\n", "\n", "\r\n", "\r", "\u2028", "\0"),
]
ANY_CELL = st.lists(st.sampled_from(PIECES), max_size=30).map("".join) | st.text()


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or the error that a user would see."""
    try:
        return call()
    except (UsageError, SyntaxError) as error:
        return error


@given(ANY_CELL | ANY_CELL.map("%cpu=3\n".__add__))
@example("%worker=2")
@example("%worker=2\r\n\r\n")
@example("x\r%worker=2\n\r%cpu=1\r\n\n")
def test_job_code_differs_from_its_cell_only_in_blanked_lines(text: str) -> None:
    cell = outcome(lambda: parse_cell(text))
    if not isinstance(cell, Cell):
        return
    before, after = split_lines(text), split_lines(cell.code)
    # A blanked last line without a line ending disappears.
    after = (*after, *before[len(after) :][:1]) if len(after) < len(before) else after
    assert len(after) == len(before)
    if "\r" not in text:
        assert [line.end for line in after] == [line.end for line in before]
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old.text != new.text]
    assert all(new.text == "" for _, new in changed)
    assert all(old.is_leading and old.text.startswith("%") for old, _ in changed)
    assert parse_cell(cell.code) is None


@given(ANY_CELL)
def test_errors_always_have_a_line(text: str) -> None:
    error = outcome(lambda: parse_cell(text))
    if not isinstance(error, UsageError):
        return
    assert error.span is not None
    assert error.source_line == split_lines(text)[error.span.line - 1].text
    assert error.message.startswith(f"line {error.span.line}: ")


@given(ANY_CELL, st.text(alphabet="-=; \"'\\worker2cpu%", max_size=20))
def test_distributed_never_changes_the_body(body: str, line: str) -> None:
    result = outcome(lambda: parse_distributed(line, body))
    if isinstance(result, UsageError):
        assert result.message.startswith("line 1: ")
    else:
        assert result.code == "\n" + body


@given(ANY_CELL)
def test_code_is_parsed_or_rejected_with_a_line(text: str) -> None:
    result = outcome(lambda: parse_code(text))
    assert isinstance(result, ast.Module) or result.lineno >= 1


@given(ANY_CELL)
def test_valid_python_is_never_a_job(text: str) -> None:
    if isinstance(outcome(lambda: parse_code(text)), ast.Module):
        assert parse_cell(text) is None


# -- any order ------------------------------------------------------------------------------------

NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True).filter(
    lambda word: (
        word not in ("as", "def", "del", "for", "if", "in", "is", "not", "or", "and", "try")
    )
)
#: What a line can hold: no ends of lines, nor a backslash that would continue it, no blanks around
#: it, nothing that a next key begins with.
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n%"), max_size=12).map(
    lambda text: text.strip(" \t;\\")
)
QUANTITIES = st.sampled_from(["1", "500m", "2.5", "4Gi", "512Mi", "1e3"])
ROLES = st.builds(
    ReplicaOptions,
    st.integers(0, 999),
    st.just("") | QUANTITIES,
    st.just("") | QUANTITIES,
    st.none() | st.integers(0, 9),
)
TYPES = ["chief", "evaluator", "master", "ps", "worker"]
WORDS = [*TYPES, *(key.name for key in OPTIONS)]
SEVERAL = st.lists(NAMES, max_size=3, unique=True).map(tuple)


@st.composite
def orders(draw: st.DrawFn) -> CellOptions:
    """Options that a cell can set, with any keys."""
    swept = draw(st.lists(NAMES, max_size=2, unique=True))
    built: dict[str, Any] = draw(
        st.sampled_from([{}, {"env": "build.envd:gpu"}, {"image": "a/b:1@sha256:0"}])
    )
    returns = draw(SEVERAL)
    sweep: dict[str, Any] = {
        "sweep": tuple(f"{name}=1,2" for name in swept),
        "metric": draw(st.sampled_from(["", "loss"])),
        "goal": draw(st.sampled_from(["", "min", "max"])),
        "pattern": draw(st.sampled_from(["", "loss=([0-9.]+)", "a;b"])),
        "parallel": draw(st.none() | st.integers(1, 9)),
        "trials": draw(st.none() | st.integers(1, 9)),
    }
    return CellOptions(
        framework=draw(st.sampled_from(["", "tensorflow"])),
        replicas=draw(st.dictionaries(st.sampled_from(TYPES), ROLES, min_size=1, max_size=3)),
        cpu=draw(st.just("") | QUANTITIES),
        memory=draw(st.just("") | QUANTITIES),
        gpu=draw(st.none() | st.integers(0, 9)),
        clean_pod_policy=draw(st.sampled_from(["", "All", "Running", "None"])),
        name=draw(st.sampled_from(["", "a", "mnist-2"])),
        on=draw(st.sampled_from(["", "local"])),
        environment=draw(st.dictionaries(NAMES, VALUES, max_size=3)),
        volumes=draw(st.sampled_from([(), ("a:/a",), ("a b:/b:ro", "c:/c:rw")])),
        send=draw(SEVERAL),
        returns=returns,
        every=bool(returns) and draw(st.booleans()),
        modules=draw(SEVERAL),
        restart=draw(st.sampled_from(["", "Always", "OnFailure", "Never", "ExitCode"])),
        backoff_limit=draw(st.none() | st.integers(0, 9)),
        deadline=draw(st.none() | st.integers(0, 9999).map(float)),
        detach=not swept and draw(st.booleans()),
        lines=draw(st.none() | st.integers(0, 99)),
        **(sweep if swept else {}),
        **built,
    )


def write_directives(order: CellOptions) -> list[tuple[str, str]]:
    """Return the directives that produce the given options."""
    words = {
        "clean_pod_policy": "clean-pod-policy",
        "backoff_limit": "backoff-limit",
        "pattern": "metric-pattern",
    }
    results = [(name, _format_role(role)) for name, role in order.replicas.items()]
    results += [("env", f"{name}={value}") for name, value in order.environment.items()]
    results += [("volume", volume) for volume in order.volumes]
    results += [("sweep", axis) for axis in order.sweep]
    for name, several in (("send", order.send), ("return", order.returns)):
        results += [(name, ", ".join(several))] if several else []
    results += [("module", module) for module in order.modules]
    for field in (*words, "framework", "cpu", "memory", "gpu", "image", "env", "on", "name"):
        value = getattr(order, field)
        results += [] if value in ("", None) else [(words.get(field, field), str(value))]
    for field in ("restart", "deadline", "lines", "metric", "goal", "parallel", "trials"):
        value = getattr(order, field)
        results += [] if value in ("", None) else [(field, str(value))]
    return results + [(field, "true") for field in ("every", "detach") if getattr(order, field)]


def _format_role(role: ReplicaOptions) -> str:
    shares = {"cpu": role.cpu, "memory": role.memory, "gpu": role.gpu}
    given = (f";%{name}={value}" for name, value in shares.items() if value not in ("", None))
    return f"{role.replicas}{''.join(given)}"


@settings(max_examples=40)
@given(orders(), st.permutations(WORDS), st.sampled_from(["=", " = ", "= ", "\t="]))
def test_directives_and_options_round_trip(
    order: CellOptions, places: list[str], sign: str
) -> None:
    words = sorted(write_directives(order), key=lambda pair: places.index(pair[0]))
    cell = parse_cell("".join(f"%{word}{sign}{value}\n" for word, value in words) + "x = 1\n")
    assert cell is not None
    assert cell.options == order
    assert cell.code == "\n" * len(words) + "x = 1\n"
    apart = [part for word, value in words for part in (f"--{word}", value) if part != "true"]
    joined = [f"--{word}={value}" for word, value in words]
    for line in (shlex.join(apart), shlex.join(joined)):
        assert parse_distributed(line, "x = 1\n").options == order
