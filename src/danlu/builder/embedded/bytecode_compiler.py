"""Compile the bytecode of wheels with the image's interpreter into separate layers.

A layer has only ``__pycache__`` directories, for one wheel's layer and one exact interpreter (two
builds of the same version differ). The files have the time and size of their source, which Python
compares (PEP 552), so that it sees a source that is edited in a container. All wheels have the same
time, so this does not tell versions apart: bytecode is used only over the very layer that it was
compiled for, and if no later one has these files (:mod:`danlu.sandbox.launcher.bytecode_layers`).
Debian's packages compile the standard library when they are installed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.staged_tree import copy_parents
from danlu.errors import StepFailed
from danlu.graph.ops import WHEEL_TIME, InstallScheme
from danlu.oci.digest import DiffId
from danlu.oci.tar import NormalizeOptions, write_layer
from danlu.sandbox.launcher.bytecode_layers import (
    ImageInterpreter,
    bytecode_record_key,
    find_bytecode_layers,
)
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.types import Mount, ProcessSpec, RootFilesystem
from danlu.store import Layer, Store

_NORMALISE = NormalizeOptions(mtime=WHEEL_TIME)
_WORK = "/run/danlu/bytecode"

# Runs in the image, with any Python from 3.7. Two processes take the files one by one, the largest
# first. Files that do not compile are skipped, as in pip.
_DRIVER = """\
import os, py_compile, sys, warnings
warnings.simplefilter("ignore")
mode = py_compile.PycInvalidationMode.TIMESTAMP
with open(sys.argv[1], "rb") as file:
    paths = [os.fsdecode(path) for path in file.read().split(b"\\0") if path]
def work():
    while True:
        token = os.read(source, 4)
        if len(token) < 4:
            return
        path = paths[int.from_bytes(token, "big")]
        try:
            py_compile.compile(path, doraise=True, invalidation_mode=mode)
        except Exception:
            pass
sys.setrecursionlimit(20000)
source, sink = os.pipe()
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        os.close(sink)
        work()
        os._exit(0)
    children.append(child)
os.close(source)
try:
    for number in range(len(paths)):
        os.write(sink, number.to_bytes(4, "big"))
except BrokenPipeError:
    pass
os.close(sink)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


async def compile_layers(
    layers: Sequence[Layer],
    interpreter: ImageInterpreter,
    scheme: InstallScheme,
    context: OpContext,
) -> dict[DiffId, Layer]:
    """Compile those of ``layers`` (wheels) that have no bytecode yet; return what all have.

    ``context.below`` is the whole image, in which the interpreter runs without a network.
    """
    missing = [
        layer
        for layer in layers
        if context.store.record(bytecode_record_key(layer, interpreter.key)) is None
    ]
    site = f"{scheme.prefix.strip('/')}/{scheme.site_packages}"
    sources = {layer: _find_sources(layer.tree, site) for layer in missing}
    with context.store.staging() as work:
        if any(sources.values()):
            names = dict.fromkeys(name for some in sources.values() for name in some)
            await _compile_sources(list(names), interpreter, context, work)
        await context.run_sync(_commit_all, sources, interpreter, context, work)
    return find_bytecode_layers(context.store, layers, interpreter.key)


def _find_sources(tree: Path, root: str) -> list[str]:
    """Return the Python files below ``root`` of a layer, the largest first."""
    found: list[tuple[int, str]] = []
    pending = [root]
    while pending:
        directory = pending.pop()
        try:
            entries = list(os.scandir(tree / directory))
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            name = f"{directory}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                pending.append(name)
            elif entry.name.endswith(".py") and entry.is_file(follow_symlinks=False):
                found.append((-entry.stat().st_size, name))
    return [name for _, name in sorted(found)]


async def _compile_sources(
    names: Sequence[str], interpreter: ImageInterpreter, context: OpContext, work: Path
) -> None:
    """Compile ``names`` in the image; the new files are in ``work/upper`` afterwards."""
    shared = work / "shared"
    shared.mkdir()
    (work / "upper").mkdir()
    (shared / "names").write_bytes(
        b"".join(f"/{name}\0".encode("utf-8", "surrogateescape") for name in names)
    )
    (shared / "driver.py").write_text(_DRIVER)
    last: list[str] = []
    process = ProcessSpec(
        # -I and -S: neither variables nor the environment's own .pth files execute anything here.
        (interpreter.path, "-ISB", f"{_WORK}/driver.py", f"{_WORK}/names"),
        # Sets are written in the order of their hashes: without a fixed seed two runs differ.
        {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"},
    )
    code = await context.sandbox().run(
        process,
        RootFilesystem(tuple(layer.tree for layer in context.below), work / "upper"),
        mounts=[Mount(_WORK, shared, readonly=True)],
        network=False,
        on_line=last.append,
    )
    if code:
        raise StepFailed("compiling bytecode failed", code=code, details=tuple(last[-10:]))


def _commit_all(
    sources: dict[Layer, list[str]], interpreter: ImageInterpreter, context: OpContext, work: Path
) -> None:
    for number, (layer, names) in enumerate(sources.items()):
        tree = work / f"tree-{number}"
        _collect_bytecode(names, work / "upper", tree)
        made = _commit_bytecode(tree, f"bytecode of {layer.created_by}", context.store)
        diff_ids = [layer.diff_id] + ([made.diff_id] if made else [])
        context.store.put_record(
            bytecode_record_key(layer, interpreter.key),
            {"layer": made.diff_id if made else ""},
            layers=diff_ids,
        )


def _collect_bytecode(names: Sequence[str], upper: Path, tree: Path) -> None:
    """Collect the compiled files of ``names`` in a tree; a file of two wheels goes to both."""
    tree.mkdir()
    listed: dict[str, dict[str, list[str]]] = {}
    for name in names:
        directory, _, file = name.rpartition("/")
        if directory not in listed:
            listed[directory] = _group_by_source(upper / directory / "__pycache__")
        for compiled in listed[directory].get(file[:-3], ()):
            target = tree / directory / "__pycache__" / compiled
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(upper / directory / "__pycache__" / compiled, target)
    for root, directories, files in os.walk(tree):
        for each in directories:
            os.chmod(os.path.join(root, each), 0o755)
        for each in files:
            os.chmod(os.path.join(root, each), 0o644)


def _group_by_source(cache: Path) -> dict[str, list[str]]:
    """Return compiled files by the name of their source without ``.py``."""
    found: dict[str, list[str]] = {}
    if cache.is_dir() and not cache.is_symlink():
        for name in os.listdir(cache):
            match = re.fullmatch(r"(.+)\.[a-z]+-\d+\.pyc", name)
            if match:
                found.setdefault(match[1], []).append(name)
    return found


def merge_bytecode(layers: Iterable[Layer], stack: Sequence[Layer], store: Store) -> Layer:
    """Return one layer with the files of all: engines limit the layers of an image.

    It lies over ``stack``, whose directories it leaves as they are.
    """
    view = LayerView([layer.tree for layer in stack])
    with store.staging() as work:
        tree = work / "tree"
        tree.mkdir()
        for layer in layers:
            for directory, _, files in os.walk(layer.tree):
                parts = Path(directory).relative_to(layer.tree).parts
                copy_parents(view, tree, parts)
                for name in files:
                    shutil.copy(os.path.join(directory, name), tree.joinpath(*parts))
        merged = _commit_bytecode(tree, "bytecode of the Python packages", store)
    assert merged is not None
    return merged


def _commit_bytecode(tree: Path, made_by: str, store: Store) -> Layer | None:
    """Commit a tree as a layer of bytecode; return None if it is empty."""
    if not any(tree.iterdir()):
        return None
    tree.chmod(0o755)
    summary = write_layer(tree, None, normalise=_NORMALISE)
    return store.commit_layer(tree, summary, created_by=made_by, normalise=_NORMALISE)
