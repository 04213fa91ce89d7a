"""Python imports the files that an image shows, whatever bytecode is laid over its wheels."""

from __future__ import annotations

import importlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from danlu.builder.embedded.bytecode_compiler import compile_layers, merge_bytecode
from danlu.builder.embedded.context import OpContext, SolveRequest, VertexResult
from danlu.graph.ops import WHEEL_TIME, InstallScheme
from danlu.oci.digest import Digest
from danlu.oci.overlay import OPAQUE_XATTR, make_whiteout
from danlu.oci.tar import write_layer
from danlu.sandbox.launcher.bytecode_layers import (
    add_bytecode_trees,
    find_interpreter,
    find_unmodified_wheels,
    record_bytecode,
)
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.types import Mount, ProcessSpec, RootFilesystem
from danlu.store import Layer, Store, StoredImage
from danlu.util.config import Configuration
from danlu.util.paths import Paths

SITE = "opt/venv/lib/python3.11/site-packages"
PYTHON = "/opt/venv/bin/python"
SCHEME = InstallScheme("/opt/venv", "3.11", "lib/python3.11/site-packages", PYTHON)
NAMES = ("alpha", "beta", "gamma")
MODULES = ("__init__", "core", "sub/__init__", "sub/deep")


class SourceFile(msgspec.Struct, frozen=True):
    """A file in site-packages; ``link`` makes it a symbolic link."""

    content: str
    time: int = WHEEL_TIME
    link: bool = False


Files = dict[str, SourceFile]


def list_distribution(name: str, version: int, time: int = WHEEL_TIME) -> Files:
    """Return the files of a distribution: all versions have the same sizes."""
    source = SourceFile(f"VERSION = {version}\n", time)
    return {
        **{f"{name}/{module}.py": source for module in MODULES},
        f"shared/{name}.py": source,
        "shared/common.py": SourceFile("VERSION = 0\n"),
        f"{name}-{version}.dist-info/METADATA": SourceFile("", time),
    }


def remove_distribution(files: Files, name: str) -> Files:
    """Return what is left of site-packages after ``pip uninstall``."""
    owned = (f"{name}/", f"{name}-", f"shared/{name}.py")
    return {path: file for path, file in files.items() if not path.startswith(owned)}


class Step(msgspec.Struct, frozen=True):
    """A step that changes ``name``; a step's files all have the same ``time``."""

    kind: str
    name: str
    version: int
    time: int
    opaque: bool

    def apply(self, files: Files) -> Files:
        """Return the files of site-packages after the step."""
        rest = remove_distribution(files, self.name)
        source = SourceFile(f"VERSION = {self.version}\n", self.time)
        match self.kind:
            case "install":
                return rest | list_distribution(self.name, self.version, self.time)
            case "uninstall":
                return rest
            case "edit":
                return files | {f"{self.name}/core.py": source}
            case "add":
                return files | {f"{self.name}/added.py": source}
            case "remove file":
                return {k: file for k, file in files.items() if k != f"{self.name}/core.py"}
            case "remove directory":
                return {k: file for k, file in files.items() if f"{self.name}/sub/" not in k}
            case "become module":
                return rest | {f"{self.name}.py": source}
            case "become link":
                return rest | {self.name: SourceFile("gamma", link=True)}
            case _:
                return files | {"../../../../srv/data": source}


KINDS = ("install", "uninstall", "edit", "add", "remove file", "remove directory")
STEPS = st.builds(
    Step,
    kind=st.sampled_from((*KINDS, "become module", "become link", "elsewhere")),
    name=st.sampled_from(NAMES[:2]),
    version=st.integers(1, 3),
    time=st.sampled_from((WHEEL_TIME, WHEEL_TIME + 9)),
    opaque=st.booleans(),
)


def write_difference(tree: Path, before: Files, after: Files, *, opaque: bool) -> None:
    """Write what distinguishes ``after`` from ``before`` in overlayfs's form."""
    site = tree / SITE
    site.mkdir(parents=True)
    removed = {path for path in before if path not in after}
    if opaque:
        # A directory that is removed and created again may be recorded so.
        for name in NAMES:
            if any(path.startswith(f"{name}/") for path in removed):
                (site / name).mkdir()
                os.setxattr(site / name, OPAQUE_XATTR, b"y")
                removed = {path for path in removed if not path.startswith(f"{name}/")}
                before = {k: f for k, f in before.items() if not k.startswith(f"{name}/")}
    for path in sorted(removed):
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            hidden = "/".join(parts[:count])
            if not any(kept == hidden or kept.startswith(f"{hidden}/") for kept in after):
                break
        add_whiteout(site / hidden)
    for path, file in after.items():
        if before.get(path) == file:
            continue
        target = site / path
        if target.is_dir() or (target.parent.exists() and not target.parent.is_dir()):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        if file.link:
            target.symlink_to(file.content)
        else:
            target.write_text(file.content)
            os.utime(target, (file.time, file.time))


def add_whiteout(path: Path) -> None:
    if os.path.lexists(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        make_whiteout(path.name, directory=descriptor)
    finally:
        os.close(descriptor)


def flatten(trees: Sequence[Path], target: Path) -> Path:
    """Write what the merged trees show; return its site-packages."""
    view = LayerView(trees)
    pending: list[tuple[str, ...]] = [()]
    while pending:
        parts = pending.pop()
        target.joinpath(*parts).mkdir(parents=True, exist_ok=True)
        for name in view.names(parts):
            entry = view.entry((*parts, name))
            assert entry is not None
            if stat.S_ISDIR(os.lstat(entry).st_mode):
                pending.append((*parts, name))
            else:
                shutil.copy2(entry, target.joinpath(*parts, name), follow_symlinks=False)
    return target / SITE


def import_everything(site: Path) -> dict[str, int | str]:
    """Return the version of each module that Python finds, as its own import system does."""
    seen: dict[str, int | str] = {}
    for name in (*NAMES, "shared"):
        import_module(site, name, name, seen)
    return seen


def import_module(directory: Path, name: str, full_name: str, seen: dict[str, Any]) -> None:
    importlib.invalidate_caches()
    spec = FileFinder(str(directory), (SourceFileLoader, [".py"])).find_spec(name)
    if spec is None:
        return
    seen[full_name] = "namespace"
    if isinstance(spec.loader, SourceFileLoader):
        values: dict[str, Any] = {}
        code = spec.loader.get_code(name)
        assert code is not None
        exec(code, values)
        seen[full_name] = values["VERSION"]
    for place in spec.submodule_search_locations or ():
        for below in ("core", "added", "sub", "deep", "common", *NAMES):
            import_module(Path(place), below, f"{full_name}.{below}", seen)


class HostSandbox:
    """Runs the compiler with the Python of the tests, on a copy of the root."""

    async def run(
        self,
        process: ProcessSpec,
        root: RootFilesystem,
        *,
        mounts: Sequence[Mount] = (),
        network: bool = True,
        on_line: Callable[[str], None] | None = None,
    ) -> int:
        """Run it; see :class:`danlu.builder.embedded.context.StepRunner`."""
        shared = mounts[0].source
        assert isinstance(shared, Path)
        assert root.upper is not None
        flatten(root.layers, root.upper)
        names = [f"{root.upper}{name}" for name in (shared / "names").read_text().split("\0")]
        (shared / "names").write_text("\0".join(names[:-1]))
        command = [sys.executable, "-ISB", f"{shared}/driver.py", f"{shared}/names"]
        return subprocess.run(command, check=False, timeout=60).returncode


async def run_sync(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


class ImageBuilder:
    """Makes images of layers in a store."""

    def __init__(self, directory: Path, store: Store) -> None:
        self.directory = directory
        self.store = store
        self.stack: list[Layer] = []
        self.add(lambda tree: write_file(tree / PYTHON[1:], "interpreter"), "base")

    def add(self, write: Callable[[Path], object], created_by: str) -> None:
        """Add a layer with what ``write`` writes into its tree."""
        with self.store.staging() as work:
            tree = work / "tree"
            tree.mkdir()
            write(tree)
            summary = write_layer(tree, None)
            self.stack.append(self.store.commit_layer(tree, summary, created_by=created_by))

    def image(self) -> StoredImage:
        """Return the image of all layers."""
        diff_ids = tuple(layer.diff_id for layer in self.stack)
        metadata = {"python": PYTHON, "prefix": "/opt/venv", "site_packages": SCHEME.site_packages}
        digest = Digest("sha256:" + f"{len(self.stack):064x}")
        return StoredImage(digest, b"", diff_ids, metadata=metadata)

    def compile_bytecode(self) -> list[Path]:
        """Do what maintenance does after a build; return the trees of the image with --bytecode."""
        stack = tuple(self.stack)
        context = OpContext(
            request=SolveRequest(Path("/")),
            store=self.store,
            paths=Paths.of(),
            config=Configuration(),
            sandbox=HostSandbox,
            inputs=(VertexResult(stack, stack),),
            log=lambda line: None,
            transfer=lambda current, total, unit="": None,
            run_sync=run_sync,
        )
        wheels = find_unmodified_wheels(stack, SITE)
        interpreter = find_interpreter(self.store, stack, PYTHON)
        compiled = anyio.run(compile_layers, wheels, interpreter, SCHEME, context)
        record_bytecode(self.store, self.image(), compiled)
        trees = [layer.tree for layer in stack]
        if compiled:
            trees.append(merge_bytecode(compiled.values(), stack, self.store).tree)
        return trees


def write_file(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(content)


def make_step(kind: str, *, opaque: bool = False) -> Step:
    return Step(kind, "alpha", 2, WHEEL_TIME, opaque)


@settings(max_examples=15)
@example([1, 1, 1], [make_step("install")], [], {0})
@example([1, 1, 1], [make_step("uninstall")], [], {0})
@example([1, 1, 1], [make_step("remove directory", opaque=True)], [], {1})
@example([1, 1, 1], [make_step("become link")], [], {1})
@example([1, 1, 1], [], [make_step("edit")], {0})
@given(
    versions=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    steps=st.lists(STEPS, max_size=4),
    steps_in_container=st.lists(STEPS, max_size=2),
    compiled_after=st.sets(st.integers(0, 4)),
)
def test_imports_are_the_same_with_and_without_bytecode(
    versions: list[int],
    steps: list[Step],
    steps_in_container: list[Step],
    compiled_after: set[int],
) -> None:
    with TemporaryDirectory() as name, Store.open(Path(name) / "store") as store:
        builder = ImageBuilder(Path(name), store)
        files: Files = {}
        for distribution, version in zip(NAMES, versions, strict=True):
            wheel = list_distribution(distribution, version)
            builder.add(partial(write_difference, before={}, after=wheel, opaque=False), "wheel")
            files |= wheel
        for number, step in enumerate(steps):
            if number in compiled_after:
                builder.compile_bytecode()
            before, files = files, step.apply(files)
            builder.add(
                partial(write_difference, before=before, after=files, opaque=step.opaque), "run"
            )
        plain_trees = [layer.tree for layer in builder.stack]
        if len(steps) in compiled_after:
            saved = flatten(builder.compile_bytecode(), Path(name) / "saved")
            built = flatten(plain_trees, Path(name) / "built")
            assert import_everything(saved) == import_everything(built)
        upper = Path(name) / "upper"
        before = files
        for step in steps_in_container:
            files = step.apply(files)
        opaque = any(step.opaque for step in steps_in_container)
        write_difference(upper, before, files, opaque=opaque)
        plain = flatten([*plain_trees, upper], Path(name) / "plain")
        trees = add_bytecode_trees(store, builder.image(), builder.stack, upper)
        shown = flatten([*trees, upper], Path(name) / "shown")
        assert import_everything(shown) == import_everything(plain)
        changed = {step.name for step in (*steps, *steps_in_container)}
        if len(steps) in compiled_after:
            for untouched in set(NAMES) - changed:
                tag = sys.implementation.cache_tag
                assert (shown / untouched / "__pycache__" / f"core.{tag}.pyc").exists()
