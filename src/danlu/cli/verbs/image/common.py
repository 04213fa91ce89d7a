"""What the image commands share: the store, and arguments that name images in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from danlu.cli.session import Session
    from danlu.graph.progress import Event
    from danlu.store import Store

__all__ = ["ImageName", "image_argument", "opened_store", "working"]

F = TypeVar("F", bound=Callable[..., Any])


class ImageName(click.ParamType[str]):
    """A name or digest of an image, completed from the store."""

    name = "image"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        """The names that begin so."""
        from click.shell_completion import CompletionItem

        from danlu.commands.images import image_names
        from danlu.store import Store
        from danlu.util.paths import Paths

        root = Paths.of().store
        if not root.is_dir():
            return []
        with Store.open(root) as store:
            names = image_names(store)
        return [CompletionItem(one) for one in names if one.startswith(incomplete)]


def image_argument(name: str = "image", **options: Any) -> Callable[[F], F]:
    """An argument that names an image."""
    return click.argument(name, type=ImageName(), **options)


@contextmanager
def opened_store(run: Session, *, as_root: bool = False) -> Iterator[Store]:
    """The user's store; ``as_root`` where trees are written, read in full or removed.

    Then an ordinary user's process becomes root of a namespace of its own first.
    """
    from danlu.store import Store

    if as_root:
        from danlu.sandbox import userns

        userns.enter(run.paths)
    with Store.open(run.paths.store) as store:
        yield store


@contextmanager
def working(run: Session, kind: str, name: str) -> Iterator[Callable[[Event], None]]:
    """Show ``name`` as the one thing that runs; gives what takes events of it."""
    import time

    from danlu.graph.progress import Finished, Started

    watch = run.watch(kind)
    began = time.monotonic()
    watch(Started(name, name, "", 0.0))
    try:
        yield watch
        passed = time.monotonic() - began
        watch(Finished(name, name, "", passed, passed, cached=False))
    finally:
        run.stop_progress()
