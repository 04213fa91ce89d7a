"""What becomes of a container whose runtime ends, fails, or is killed: a script is the runtime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.errors import MachineError
from danlu.sandbox.sandbox import Sandbox
from danlu.sandbox.types import ProcessSpec, RootFilesystem
from tests.sandbox.conftest import Inside
from tests.sandbox.trees import write

_SCRIPT = """#!/bin/sh
while [ $# -gt 0 ]; do
    case "$1" in --log) log="$2" ;; esac
    shift
done
fail() { printf '{"level": "error", "msg": "%s"}' "$1" >"$log"; exit 1; }
"""


def run_with(home: Path, script: str, **options: Any) -> tuple[int, list[str], list[str]]:
    """Run a program whose runtime is ``script``: exit code, lines, and what is left behind."""
    runtime = home / "runtime"
    runtime.write_text(_SCRIPT + script)
    runtime.chmod(0o755)
    work = home / "work"
    work.mkdir()
    lines: list[str] = []
    layer = write(home / "layer", {"f": "1"})

    async def main() -> int:
        sandbox = Sandbox(work, name=str(runtime))
        kept = {path.name for path in work.iterdir()}
        try:
            return await sandbox.run(
                ProcessSpec(("train",)),
                RootFilesystem((layer,)),
                network=False,
                on_line=lines.append,
                **options,
            )
        finally:
            left.extend(path.name for path in work.iterdir() if path.name not in kept)

    left: list[str] = []
    return anyio.run(main), lines, left


def test_output_comes_line_by_line_with_the_exit_code(inside: Inside, home: Path) -> None:
    script = "printf 'one\\r\\ntwo\\rthree\\nrunc run failed: x\\n\\377four'; exit 3"
    assert inside(lambda: run_with(home, script)) == (
        3,
        ["one", "two", "three", "\ufffdfour"],
        [],
    )


@pytest.mark.parametrize(
    ("reason", "code", "line"),
    [
        ("exec /train: no such file or directory", 127, "train: not found"),
        ("exec /train: permission denied", 126, "train: cannot be executed"),
    ],
)
def test_program_that_cannot_be_started_is_named(
    inside: Inside, home: Path, reason: str, code: int, line: str
) -> None:
    assert inside(lambda: run_with(home, f'fail "{reason}"')) == (code, [line], [])


def test_runtime_that_fails_is_an_error_with_its_reason(inside: Inside, home: Path) -> None:
    def act() -> tuple[str, ...]:
        with pytest.raises(MachineError) as caught:
            run_with(home, 'fail "error mounting x"')
        return caught.value.details

    assert inside(act) == ("error mounting x",)


def test_program_may_exit_with_the_code_of_a_failed_runtime(inside: Inside, home: Path) -> None:
    assert inside(lambda: run_with(home, "exit 125")) == (125, [], [])


def test_cancelled_run_ends_its_processes_and_leaves_nothing(inside: Inside, home: Path) -> None:
    script = "echo started; while :; do sleep 1000; done"

    def act() -> tuple[list[str], list[str], bool]:
        lines: list[str] = []
        left: list[str] = []
        (home / "runtime").write_text(_SCRIPT + script)
        (home / "runtime").chmod(0o755)
        work = home / "work"
        work.mkdir()
        layer = write(home / "layer", {"f": "1"})

        async def main() -> None:
            sandbox = Sandbox(work, name=str(home / "runtime"))
            kept = {path.name for path in work.iterdir()}
            with anyio.CancelScope() as scope:

                def stop(line: str) -> None:
                    lines.append(line)
                    scope.cancel()

                await sandbox.run(
                    ProcessSpec(("train",)),
                    RootFilesystem((layer,)),
                    network=False,
                    on_line=stop,
                )
            left.extend(path.name for path in work.iterdir() if path.name not in kept)

        anyio.run(main)
        mounts = Path("/proc/self/mountinfo").read_text()
        children = Path("/proc/self/task", str(os.getpid()), "children").read_text()
        return lines, [*left, *children.split()], str(work) in mounts

    assert inside(act) == (["started"], [], False)
