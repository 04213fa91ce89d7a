"""Compile the bytecode of wheels with the image's interpreter into separate layers.

A layer has only ``__pycache__`` directories, for one wheel's layer and one exact interpreter (two
builds of the same version differ). The files are unchecked hash-based pycs (PEP 552): timestamps
could not detect a changed source, because all files of a layer have the same time. Debian's
packages compile the standard library when they are installed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from danlu.builder.embedded.bytecode_layers import (
    ImageInterpreter,
    bytecode_record_key,
    find_bytecode_layers,
)
from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.ops.staged_tree import set_owner
from danlu.environment.image_layout import CONDA_PREFIX, VENV
from danlu.errors import StepFailed
from danlu.graph.ops import WHEEL_TIME, Bytecode, InstallScheme
from danlu.oci.tar import NormalizeOptions, write_layer
from danlu.sandbox.types import Mount, ProcessSpec, RootFilesystem
from danlu.store import Layer, Store

_NORMALISE = NormalizeOptions(mtime=WHEEL_TIME, uid=0, gid=0)
_WORK = "/run/danlu/bytecode"

# Runs in the image, with any Python from 3.7. Two processes take the files one by one, the largest
# first. Files that do not compile are skipped, as in pip.
_DRIVER = """\
import os, py_compile, sys, warnings
warnings.simplefilter("ignore")
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
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
) -> list[Layer]:
    """Compile those of ``layers`` (wheels) that have no bytecode yet; return the layers for all.

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


async def execute(op: Bytecode, context: OpContext) -> list[Layer]:
    """Return one layer with the bytecode of everything below ``op.roots``."""
    names = dict.fromkeys(
        name
        for layer in context.below
        for root in op.roots
        for name in _find_sources(layer.tree, root.strip("/"))
    )
    interpreter = ImageInterpreter(op.interpreter, "")
    with context.store.staging() as work:
        await _compile_sources(list(names), interpreter, context, work)
        tree = work / "tree"
        await context.run_sync(
            partial(_collect_bytecode, list(names), work / "upper", tree, move=True)
        )
        layer = await context.run_sync(commit_bytecode, tree, "python -m compileall", context.store)
        return [layer] if layer is not None else []


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
        made = commit_bytecode(tree, f"bytecode of {layer.created_by}", context.store)
        diff_ids = [layer.diff_id] + ([made.diff_id] if made else [])
        context.store.put_record(
            bytecode_record_key(layer, interpreter.key),
            {"layer": made.diff_id if made else ""},
            layers=diff_ids,
        )


def _collect_bytecode(names: Sequence[str], upper: Path, tree: Path, *, move: bool = False) -> None:
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
            source = upper / directory / "__pycache__" / compiled
            if move:
                os.rename(source, target)
            else:
                os.link(source, target)
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


def commit_bytecode(
    tree: Path, made_by: str, store: Store, *, owner: tuple[int, int] | None = None
) -> Layer | None:
    """Commit a tree as a layer of bytecode; return None if it is empty.

    ``owner`` (uid, gid) gets everything but the directories of the root and of ``/opt``.
    """
    if not any(tree.iterdir()):
        return None
    tree.chmod(0o755)
    normalise = _NORMALISE
    if owner is not None:
        normalise = NormalizeOptions(mtime=WHEEL_TIME)
        for root in (VENV, CONDA_PREFIX):
            place = tree / root.strip("/")
            if place.exists():
                set_owner(place, owner)
    summary = write_layer(tree, None, normalise=normalise)
    return store.commit_layer(tree, summary, created_by=made_by, normalise=normalise)
