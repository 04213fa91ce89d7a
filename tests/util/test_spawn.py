from __future__ import annotations

import os
import subprocess
import sys

import pytest

from danlu.util.spawn import spawn_process

_LIST_OPEN = (
    "import os; [os.fstat(fd) for fd in range(4)]; print(sorted(os.listdir('/proc/self/fd')))"
)


def test_program_gets_the_given_descriptors_only() -> None:
    reading, writing = os.pipe()
    inherited = os.dup(writing)
    os.set_inheritable(inherited, True)
    try:
        # Listing the directory opens one more.
        command = [sys.executable, "-I", "-c", _LIST_OPEN]
        process = spawn_process(command, (writing, writing, writing, writing))
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    finally:
        os.close(inherited)
        os.close(writing)
    with os.fdopen(reading) as output:
        assert output.read() == "['0', '1', '2', '3', '4']\n"


def test_none_is_the_null_device() -> None:
    reading, writing = os.pipe()
    script = "import os; print(os.fstat(0).st_rdev == os.stat('/dev/null').st_rdev)"
    process = spawn_process([sys.executable, "-I", "-c", script], (None, writing, None))
    os.close(writing)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    with os.fdopen(reading) as output:
        assert output.read() == "True\n"


_SPAWN_WITH_FEW_FILES = """
import errno, os, resource, sys
import pytest

from danlu.util.spawn import spawn_process

high = os.dup2(0, 90)
os.set_inheritable(high, True)
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), 90))
before = os.listdir("/proc/self/fd")
try:
    process = spawn_process([sys.executable, "-I", "-c", "import os; os.fstat(90)"], (0, 1, 2))
except OSError as error:
    assert error.errno == errno.EMFILE, error
    print("too many")
else:
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
assert os.listdir("/proc/self/fd") == before
"""


@pytest.mark.parametrize(
    ("limit", "expected"), [(20, "too many"), (33, "too many"), (34, "too many"), (60, "1")]
)
def test_a_low_limit_of_open_files_is_reported_as_such(limit: int, expected: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _SPAWN_WITH_FEW_FILES, str(limit)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    # The program does not get the descriptor above the limit, and fstat(2) fails.
    assert (result.returncode, result.stdout) == (0, f"{expected}\n"), result.stderr
