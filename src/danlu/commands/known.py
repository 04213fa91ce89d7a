"""What was built before, found by the bytes it was built from: a start waits for this.

Nothing of the language or the graph is loaded. A build file in Starlark sees only the files it
loads, so where those, the files it names and the lock are as they were, so is the image. A
``build.py`` may look at anything, and is never answered for here.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from danlu import __version__

if TYPE_CHECKING:
    from danlu.commands.project import Project
    from danlu.environment.inputs import Inputs
    from danlu.store import Store, StoredImage

__all__ = ["find", "remember"]


def _key(project: Project) -> str:
    return f"known:{__version__}:{project.directory}:{project.file}:{project.function}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def remember(store: Store, project: Project, inputs: Inputs, image: StoredImage) -> None:
    """Keep that the project, as it is on disk, gives ``image``."""
    if not project.file.endswith(".envd"):
        return
    value: dict[str, Any] = {
        "texts": {path: _hash(text) for path, text in project.texts.items()},
        "files": {**inputs.files, **inputs.packages},
        "context": inputs.context,
        "lock": _hash(project.lock_path.read_text(encoding="utf-8")),
        "image": image.digest,
    }
    store.put_record(_key(project), value, layers=image.layers)


def find(store: Store, project: Project) -> StoredImage | None:
    """The image of the project, if all it was built from is as it was."""
    value = store.record(_key(project))
    if value is None or not project.lock_text or _hash(project.lock_text) != value["lock"]:
        return None
    if not _same_texts(project, value["texts"]) or not _same_files(project, value):
        return None
    return store.image(value["image"])


def _same_texts(project: Project, texts: dict[str, str]) -> bool:
    try:
        return all(
            _hash((project.directory / path).read_text(encoding="utf-8")) == digest
            for path, digest in texts.items()
        )
    except (OSError, UnicodeDecodeError):
        return False


def _same_files(project: Project, value: dict[str, Any]) -> bool:
    wanted = {**value["files"], **({".": value["context"]} if value["context"] else {})}
    if not wanted:
        return True
    from danlu.errors import UsageError
    from danlu.sources.context import digest_of_path

    try:
        return all(
            digest_of_path(project.directory, path) == digest for path, digest in wanted.items()
        )
    except (UsageError, OSError):
        return False
