"""``--on``: which of the arguments are danlu's."""

from __future__ import annotations

import pytest

from danlu.cli.app import root
from danlu.cli.context_dispatch import take_on_option
from danlu.errors import UsageError


@pytest.mark.parametrize(
    ("line", "on", "rest"),
    [
        ("ps --on box", "box", "ps"),
        ("up -d --on=box --name a", "box", "up -d --name a"),
        ("-v jobs logs --on box job-1", "box", "-v jobs logs job-1"),
        ("exec -n a --on box python -V", "box", "exec -n a python -V"),
        ("run --on box -- python --on x", "box", "run -- python --on x"),
        ("train train.py --on box", "box", "train train.py"),
        # It is the program's.
        ("exec -n a python --on x", "", "exec -n a python --on x"),
        ("run -- python --on x", "", "run -- python --on x"),
        ("train train.py -- --on x", "", "train train.py -- --on x"),
        ("ssh a -- tool --on=x", "", "ssh a -- tool --on=x"),
    ],
)
def test_the_option_is_taken_from_danlus_arguments_only(line: str, on: str, rest: str) -> None:
    words = line.split()
    name = next(word for word in words if not word.startswith("-"))
    found, remaining = take_on_option(name, words, root)
    assert (found, list(remaining)) == (on, rest.split())


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(UsageError, match="requires the name of a context"):
        take_on_option("ps", ["ps", "--on"], root)
