"""Keep what was changed by hand in an environment: as an image, or as lines of the build file."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from danlu.commands.environments.build_lines import render_build_lines
from danlu.commands.environments.changes import EnvironmentChanges, collect_changes
from danlu.commands.environments.docker_changes import open_container_changes
from danlu.commands.environments.file_changes import UnreproducedChange, list_sockets
from danlu.commands.settings import Settings
from danlu.engine.environment_directory import (
    EMBEDDED_ENGINE,
    KUBERNETES_ENGINE,
    EnvironmentDirectory,
    EnvironmentSpec,
)
from danlu.engine.environment_image import find_environment_image
from danlu.engine.vscode_servers import MOUNT_TARGET
from danlu.environment.image_layout import HOME
from danlu.errors import OutsideError, UsageError
from danlu.oci.tar import write_layer
from danlu.sandbox import userns
from danlu.sandbox.finalize_upper import finalize_upper
from danlu.sandbox.layer_view import LayerView
from danlu.sources.build_context import find_ignored
from danlu.store import Store
from danlu.util.disk_full import disk_full_error, ran_out_of_space
from danlu.util.fork import run_in_child
from danlu.util.safe_paths import ProjectTree, write_beneath

#: Where ``--write`` keeps changed files, below the project.
FILES_DIRECTORY = "environment-files"
#: A package with an exact version of Python's or conda's.
_PIN = re.compile(r"([A-Za-z0-9_.-]+)(==?)[A-Za-z0-9_.!+]+")


#: Writes the writable layer to a new directory, given the image's; returns what it cannot write.
_WriteChanges = Callable[[Path, LayerView], tuple[UnreproducedChange, ...]]


@dataclass(frozen=True)
class CommitResult:
    """What was changed, the calls that reproduce it, and the digest of the new image, if any."""

    changes: EnvironmentChanges
    lines: tuple[str, ...]
    image: str = ""


def commit_environment(
    environment: EnvironmentDirectory,
    settings: Settings,
    *,
    tag: str = "",
    write: bool = False,
    included: Sequence[str] = (),
) -> CommitResult:
    """Report what was changed in an environment.

    With ``tag`` the writable layer becomes a layer of a new image of that name; with ``write`` the
    calls are added to the project's build file, and changed files are copied to
    ``environment-files`` next to it: of the private ones, those in or below ``included``. Forks, so
    the process must not have other threads. Raises :class:`UsageError` if the environment has no
    build file to write to, :class:`OutsideError` if files change while they are read.
    """
    spec = environment.read_spec()
    if spec.engine == KUBERNETES_ENGINE:
        raise UsageError(
            f"cannot commit {environment.name}: Kubernetes gives no access to the layer in which a"
            " pod's changes are",
            hint="make the changes in an environment of another engine, or write them in the build"
            " file",
        )
    build_file = _find_build_file(spec) if write else None

    with _open_changes(environment, spec) as write_changes:

        def commit() -> CommitResult:
            userns.enter(settings.paths)
            project = Path(spec.project) if write else None
            return _read_changes(
                write_changes, spec, settings, tag=tag, copy_to=project, included=included
            )

        result = run_in_child(commit)
    if build_file is not None and result.lines:
        append_lines(build_file, spec.target.rpartition(":")[2], result.lines)
    return result


@contextmanager
def _open_changes(
    environment: EnvironmentDirectory, spec: EnvironmentSpec
) -> Iterator[_WriteChanges]:
    """Yield a function that copies the writable layer to a new directory."""
    if spec.engine == EMBEDDED_ENGINE:
        yield partial(_copy_upper, environment.upper)
        return
    with open_container_changes(environment) as write_changes:
        yield write_changes


def _read_changes(
    write_changes: _WriteChanges,
    spec: EnvironmentSpec,
    settings: Settings,
    *,
    tag: str,
    copy_to: Path | None,
    included: Sequence[str],
) -> CommitResult:
    with Store.open(settings.paths.store) as store, store.lease(), store.staging() as work:
        image, layers = find_environment_image(store, spec)
        staged = work / "upper"
        trees = [layer.tree for layer in layers]
        lost = write_changes(staged, LayerView(trees))
        finalize_upper(staged, int(time.time()), below=trees)
        changes = collect_changes(
            staged,
            trees,
            lost=lost,
            mount_points=_list_mount_points(spec),
            included=included,
        )
        copied, ignored = "", tuple[str, ...]()
        if copy_to is not None:
            copied, ignored = copy_files(changes, staged, copy_to)
        lines = tuple(render_build_lines(changes, staged=copied, ignored=ignored))
        if not tag:
            return CommitResult(changes, lines)
        made_by = f"danlu commit {spec.name}"
        layer = store.commit_layer(staged, write_layer(staged, None), created_by=made_by)
        config = _extend_config(image.config, layer.diff_id, made_by)
        new = store.put_image(config, [*image.layers, layer.diff_id], names=[tag])
        return CommitResult(changes, lines, new.digest)


def _list_mount_points(spec: EnvironmentSpec) -> list[str]:
    """Return the targets of mounts, with those at home for each home that there may be."""
    targets = [mount.target for mount in spec.mounts]
    targets += [volume.target for volume in spec.volumes]
    homes = ["/root", HOME]
    return [
        *(f"{home}{target[1:]}" for target in targets if target.startswith("~/") for home in homes),
        *(target for target in targets if not target.startswith("~/")),
        *(MOUNT_TARGET, "/dev", "/proc", "/run", "/sys", "/tmp", "/workspace"),
    ]


def _copy_upper(source: Path, target: Path, _: LayerView) -> tuple[UnreproducedChange, ...]:
    """Copy a tree with owners, whiteouts and attributes, sharing blocks where possible."""
    command = ["cp", "-a", "--reflink=auto", str(source), str(target)]
    # Names of files need not be UTF-8.
    completed = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C"},
        check=False,
    )
    if completed.returncode:
        details = tuple(completed.stderr.splitlines()[:5])
        if ran_out_of_space(target.parent, details):
            raise disk_full_error("the store, to which the changes are copied", details=details)
        raise OutsideError(
            "cannot copy the environment's writable layer",
            details=details,
            hint="stop the environment first with `danlu stop`, so that no file changes meanwhile",
        )
    return list_sockets(target)


def _extend_config(config: bytes, diff_id: str, made_by: str) -> bytes:
    """Return an image configuration with one more layer (OCI image spec, config.md)."""
    document = json.loads(config)
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    document["created"] = created
    document["rootfs"]["diff_ids"].append(diff_id)
    if "history" in document:
        document["history"].append({"created": created, "created_by": made_by})
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def copy_files(
    changes: EnvironmentChanges, tree: Path, project: Path
) -> tuple[str, tuple[str, ...]]:
    """Copy new and changed files into the project, to a directory named by their content.

    The paths are those of real directories of ``tree``; the files belong to the user. Returns the
    directory, empty if there are no such files, and what is in it although the project's ignore
    file excludes it.
    """
    copied = [change for change in changes.files if change.has_copy]
    if not copied:
        return "", ()
    digest = hashlib.sha256()
    contents = {}
    for change in copied:
        # Bounded: larger files have no copies.
        contents[change] = data = (tree / change.path.lstrip("/")).read_bytes()
        digest.update(f"{change.path}\0{len(data)}\0".encode() + data)
    directory = f"{FILES_DIRECTORY}/{digest.hexdigest()[:12]}"
    for change, data in contents.items():
        found = change.attributes.mode
        # What only its owner could read inside stays so.
        mode = (0o755 if found & 0o111 else 0o644) & (found | 0o600)
        # The project is writable inside, so its directories may be links to anywhere.
        write_beneath(project, f"{directory}{change.path}", data, mode=mode)
    with ProjectTree(project) as files:
        ignored = find_ignored(files, [f"{directory}{change.path}" for change in copied])
    return directory, tuple(sorted(path.removeprefix(directory) for path in ignored))


def _find_build_file(spec: EnvironmentSpec) -> Path:
    name = spec.target.rpartition(":")[0]
    if not name:
        raise UsageError(
            f"environment {spec.name} was created from an image, not from a build file",
            hint="use --tag to keep the changes as an image",
        )
    return Path(spec.project) / name


def append_lines(build_file: Path, function: str, lines: tuple[str, ...]) -> None:
    """Add the statements that a function does not have to its end.

    Versions in it that contradict those of the statements are replaced. Starlark's functions are
    parsed as Python's.

    Raises :class:`UsageError` if there is no such function, or no place for lines in it.
    """
    with ProjectTree(build_file.parent) as tree:
        text = tree.read_text(build_file.name)
    name = function.partition("(")[0]
    try:
        before = _find_function(ast.parse(text), name)
    except SyntaxError as error:
        raise UsageError(f"cannot read {build_file.name}: {error.msg}") from error
    if before is None:
        raise UsageError(f"{build_file.name} has no function {name} to add lines to")
    text = _replace_versions(text, before, lines)
    before = _find_function(ast.parse(text), name)
    assert before is not None
    expected = [ast.dump(node) for node in before.body]
    statements = {line: ast.dump(ast.parse(line).body[0]) for line in lines}
    added = {line: text for line, text in statements.items() if text not in expected}
    changed = _insert_lines(text, before, tuple(added))
    place = _find_end(before)
    expected[place:place] = added.values()
    # A function on one line, for example, has no place for them.
    if _dump_statements(changed, name) != expected:
        raise UsageError(
            f"cannot add lines to function {name} of {build_file.name}",
            hint="add the lines that `danlu commit` prints",
        )
    write_beneath(build_file.parent, build_file.name, changed.encode())


def _find_function(module: ast.Module, name: str) -> ast.FunctionDef | None:
    found = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    return next((node for node in reversed(found) if node.name == name), None)


def _replace_versions(text: str, function: ast.FunctionDef, lines: Sequence[str]) -> str:
    """Replace exact versions in the function's packages by those of ``lines``."""
    wanted = {
        (called, match[1], match[2]): match[0]
        for line in lines
        for called, node, match in _list_pins(ast.parse(line))
    }
    # Offsets are those of the encoded text; from the end, so that they stay valid.
    rows = text.encode().split(b"\n")
    pins = sorted(_list_pins(function), key=lambda pin: (-pin[1].lineno, -pin[1].col_offset))
    for called, node, match in pins:
        pin = wanted.get((called, match[1], match[2]))
        if pin is None or pin == node.value or node.lineno != node.end_lineno:
            continue
        row = rows[node.lineno - 1]
        start, end = node.col_offset, node.end_col_offset
        rows[node.lineno - 1] = row[:start] + b'"%s"' % pin.encode() + row[end:]
    return b"\n".join(rows).decode()


def _list_pins(tree: ast.AST) -> Iterator[tuple[str, ast.Constant, re.Match[str]]]:
    """Yield the name of the function, the string and its parts for each exact version."""
    for call in ast.walk(tree):
        called = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
        if called in ("install.python_packages", "install.conda_packages"):
            for node in ast.walk(call):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    match = _PIN.fullmatch(node.value)
                    if match:
                        yield called, node, match


def _find_end(function: ast.FunctionDef) -> int:
    """Return the number of statements before the ``return`` at the end, or of all."""
    return len(function.body) - isinstance(function.body[-1], ast.Return)


def _insert_lines(text: str, function: ast.FunctionDef, lines: tuple[str, ...]) -> str:
    """Insert lines at the end of a function."""
    newline = "\r\n" if "\r\n" in text else "\n"
    # Python's parser counts these lines; str.splitlines() also splits at form feeds in them.
    rows = text.removesuffix(newline).split(newline)
    place = _find_end(function)
    below = function.body[place:]
    end = below[0].lineno - 1 if below else function.body[-1].end_lineno or len(rows)
    first = rows[function.body[0].lineno - 1]
    indent = first[: len(first) - len(first.lstrip())]
    rows[end:end] = [f"{indent}{row}" for line in lines for row in line.split("\n")]
    return newline.join(rows) + newline


def _dump_statements(text: str, name: str) -> list[str]:
    """Return the statements of a function; empty if the text is invalid."""
    try:
        function = _find_function(ast.parse(text), name)
    except SyntaxError:
        return []
    return [] if function is None else [ast.dump(node) for node in function.body]
