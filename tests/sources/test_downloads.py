"""The size of the download cache, and eviction."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

from danlu.sources import downloads
from danlu.sources.git import read_repository
from danlu.util.locks import file_lock

FILES = (
    "apt/debs/one.deb",
    "apt/debs/partial/two.deb",
    "http/sha256/three",
    "http/four.part",
    "wheels/five/five-1-py3-none-any.whl",
    "uv/archive-v0/six/six.py",
    "git/trees/seven/seven.py",
)


def put(cache: Path, name: str, *, used: int, size: int = 100) -> Path:
    """Create a download of ``size`` bytes last used at ``used`` (seconds since 1970)."""
    path = cache / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    depth = 3 if name.split("/")[0] in ("uv", "git") else 2
    item = path if name.startswith(("apt", "http")) else cache.joinpath(*name.split("/")[:depth])
    os.utime(item, (used, used))
    return path


def test_least_recently_used_downloads_are_evicted_first(tmp_path: Path) -> None:
    paths = [put(tmp_path, name, used=1000 + number) for number, name in enumerate(FILES)]
    assert downloads.cache_size(tmp_path) == 700
    result = downloads.prune(tmp_path, 350)
    assert result == downloads.PruneResult(count=4, freed=400, kept=300)
    assert [path.exists() for path in paths] == [False] * 4 + [True] * 3
    assert downloads.prune(tmp_path, 0).kept == 0
    assert not any(path.exists() for path in paths)


def test_reading_counts_as_use_and_so_does_making(tmp_path: Path) -> None:
    read, result, old = (put(tmp_path, f"http/sha256/{n}", used=1000) for n in ("a", "b", "c"))
    os.utime(read, (2000, 1000))
    os.utime(result, (1000, 2000))
    downloads.prune(tmp_path, 200)
    assert [path.exists() for path in (read, result, old)] == [True, True, False]


def test_what_an_interrupted_uv_leaves_is_counted_and_evicted(tmp_path: Path) -> None:
    half = put(tmp_path, "uv/.tmpXyz123/torch/lib.so", used=1000)
    assert downloads.cache_size(tmp_path) == 100
    downloads.prune(tmp_path, 0)
    assert not half.exists()


def test_sweep_waits_for_builds_and_removes_only_leftovers(tmp_path: Path) -> None:
    half = put(tmp_path, "uv/.tmpXyz123/torch/lib.so", used=1000)
    kept = put(tmp_path, "uv/archive-v0/kept/x.py", used=1000)
    assert downloads.has_leftovers(tmp_path)
    with downloads.prevent_pruning(tmp_path):
        sweeping = threading.Thread(target=downloads.sweep, args=(tmp_path,))
        sweeping.start()
        assert half.exists()
    sweeping.join()
    assert (half.exists(), kept.exists()) == (False, True)
    assert not downloads.has_leftovers(tmp_path)


def test_a_wheel_shared_with_a_layer_is_not_evicted(tmp_path: Path) -> None:
    kept = put(tmp_path, "uv/archive-v0/kept/x.py", used=1)
    (tmp_path / "layer").mkdir()
    os.link(kept, tmp_path / "layer/x.py")
    gone = put(tmp_path, "uv/archive-v0/gone/x.py", used=2)
    assert downloads.cache_size(tmp_path) == 100
    assert downloads.prune(tmp_path, 0).count == 1
    assert (kept.exists(), gone.exists()) == (True, False)
    (tmp_path / "layer/x.py").unlink()
    assert downloads.prune(tmp_path, 0).count == 1


def test_nothing_is_evicted_while_a_build_runs(tmp_path: Path) -> None:
    path = put(tmp_path, "apt/debs/one.deb", used=1)
    with downloads.prevent_pruning(tmp_path):
        assert downloads.prune(tmp_path, 0) == downloads.PruneResult(0, 0, 100, busy=True)
        assert downloads.prune(tmp_path, 100) == downloads.PruneResult(0, 0, 100)
        with downloads.prevent_pruning(tmp_path):
            pass
    assert downloads.prune(tmp_path, 0).count == 1
    assert not path.exists()


def test_a_repository_in_use_is_not_removed(tmp_path: Path) -> None:
    path = put(tmp_path, "git/db/key/packed", used=1)
    with file_lock(tmp_path / "git/db/key.lock"):
        assert downloads.prune(tmp_path, 0).count == 0
    assert downloads.prune(tmp_path, 0).count == 1
    assert not path.exists()


def test_nothing_else_of_the_cache_is_touched(tmp_path: Path) -> None:
    others = ("apt/epochs.json", "uv/simple-v27/x", "uv/wheels-v7/x", "git/db/key.lock", "lock")
    paths = [put(tmp_path, name, used=1) for name in others]
    assert downloads.prune(tmp_path, 0) == downloads.PruneResult(0, 0, 0)
    assert all(path.exists() for path in paths)


def test_an_evicted_download_is_fetched_again(tmp_path: Path) -> None:
    source, cache = tmp_path / "source", tmp_path / "cache"
    source.mkdir()
    (source / "lib.envd").write_text("x = 1\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(source)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "1"]):
        subprocess.run([*git, *words], check=True)
    first = read_repository(str(source), "", commit="", cache=cache / "git")
    assert downloads.prune(cache, 0).count == 1
    assert not list((cache / "git/db").glob("*/HEAD"))
    again = read_repository(str(source), "", commit=first.commit, cache=cache / "git")
    assert again == first
