"""Find the image of a project whose files have not changed, without evaluating the build file.

A Starlark build file can only read the files that it loads: if these, the files it names and the
lock are unchanged, so are the image and the settings that it is started with. A ``build.py`` can
read anything, and is never cached here.
Every build and every ``danlu run`` waits for this, so the language and the graph are not imported.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

import msgspec

from danlu import __version__
from danlu.environment.runtime_settings import RuntimeSettings
from danlu.errors import DanluError
from danlu.util.decoding import convert_value
from danlu.util.safe_paths import ProjectTree

if TYPE_CHECKING:
    from danlu.environment.types import ProjectDigests
    from danlu.project.project import Project
    from danlu.store import Store, StoredImage


def _record_key(project: Project, *, portable: bool = False) -> str:
    kind = "portable-4" if portable else "known-6"
    return f"{kind}:{__version__}:{project.directory}:{project.file}:{project.target}"


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def store_result(
    store: Store,
    project: Project,
    inputs: ProjectDigests,
    image: StoredImage,
    runtime: RuntimeSettings,
) -> None:
    """Record ``image`` and how it is started as the result of the project's files as read.

    They may have changed since then.
    """
    if not project.file.endswith(".envd"):
        return
    inputs = inputs.merge_sources()
    value: dict[str, Any] = {
        "texts": {path: _hash_text(text) for path, text in project.texts.items()},
        "files": inputs.files,
        "packages": inputs.packages,
        "context": inputs.context,
        "editable": inputs.editable,
        "copies": inputs.copies,
        "absent": list(inputs.absent),
        "lock": _hash_text(project.lock_text),
        "image": image.digest,
        "runtime": msgspec.to_builtins(runtime),
    }
    # Only editable packages make a difference between the two kinds of images.
    key = _record_key(project, portable=bool(inputs.copies))
    store.put_record(key, value, layers=image.layers)


def lookup(store: Store, project: Project) -> StoredImage | None:
    """Return the project's image if no file that it was built from has changed."""
    found = lookup_environment(store, project)
    return found[0] if found is not None else None


def lookup_environment(
    store: Store, project: Project
) -> tuple[StoredImage, RuntimeSettings] | None:
    """Return the project's image as :func:`lookup` does, and how it is started."""
    value = store.record(_record_key(project))
    if project.portable and (value is None or value["editable"]):
        value = store.record(_record_key(project, portable=True))
    if value is None or not project.lock_text or _hash_text(project.lock_text) != value["lock"]:
        return None
    if not _texts_match(project, value["texts"]) or not _files_match(project, value):
        return None
    image = store.image(value["image"])
    return None if image is None else (image, convert_value(value["runtime"], RuntimeSettings))


def list_dependencies(store: Store, project: Project) -> list[str] | None:
    """Return the paths of the files that :func:`lookup` compares.

    Returns None if nothing is recorded, or if it compares a whole directory.
    """
    value = store.record(_record_key(project))
    if value is None or value["context"] or value["editable"]:
        return None
    paths = [*value["texts"], *value["files"], *value["packages"]]
    if not all((project.directory / path).is_file() for path in paths):
        return None
    return [*paths, *value["absent"], project.lock_path.name]


def _texts_match(project: Project, texts: dict[str, str]) -> bool:
    try:
        with ProjectTree(project.directory) as tree:
            return all(_hash_text(tree.read_text(path)) == text for path, text in texts.items())
    except (OSError, UnicodeDecodeError, DanluError):
        return False


def _files_match(project: Project, value: dict[str, Any]) -> bool:
    files, packages, context = value["files"], value["packages"], value["context"]
    editable, copies = value["editable"], value["copies"]
    if any(os.path.lexists(project.directory / path) for path in value["absent"]):
        return False
    if not files and not packages and not context and not editable:
        return True
    from danlu.sources.build_context import digest_path
    from danlu.sources.file_digests import FileDigests

    directory = project.directory
    digests = FileDigests.of_project(directory, project.paths.cache)
    try:
        same = all(digest_path(directory, path, digests) == files[path] for path in files)
        if same and context:
            same = digest_path(directory, ".", digests) == context
        if same and (packages or copies):
            from danlu.sources.pypi.source_tree import digest_source

            trees = {**packages, **copies}
            same = all(digest_source(directory, path, digests) == trees[path] for path in trees)
        if same and editable:
            from danlu.sources.pypi.editable_metadata import digest_metadata

            same = all(digest_metadata(directory, path) == editable[path] for path in editable)
    except (DanluError, OSError):
        return False
    digests.save()
    return same
