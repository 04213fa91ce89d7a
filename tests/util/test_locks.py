from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from danlu.util.locks import file_lock, try_file_lock


def test_lock_excludes_another_holder(tmp_path: Path) -> None:
    path = tmp_path / "a" / "lock"
    with file_lock(path), try_file_lock(path) as got:
        assert not got
    with try_file_lock(path) as got:
        assert got


def test_shared_holders_do_not_exclude_each_other(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with file_lock(path, shared=True):
        with try_file_lock(path, shared=True) as got:
            assert got
        with try_file_lock(path) as got:
            assert not got


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    program = (
        "import os, signal, sys; from pathlib import Path; from danlu.util.locks import file_lock\n"
        "with file_lock(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    with try_file_lock(path) as got:
        assert got
