"""Byte code for a start: what an image says of its Python, and making what is missing (D4)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from danlu.builder.embedded.bytecode import bytecode_key, wheels_of

if TYPE_CHECKING:
    from danlu.commands.settings import Settings
    from danlu.graph import Scheme
    from danlu.store import Store, StoredImage

__all__ = ["compile_image", "described"]


def described(executable: str, scheme: Scheme) -> dict[str, str]:
    """What an image's metadata keeps of its Python (:mod:`danlu.builder.embedded.bytecode`)."""
    return {
        "python": executable,
        "prefix": scheme.prefix,
        "version": scheme.version,
        "site_packages": scheme.site_packages,
        "interpreter": scheme.interpreter,
    }


async def compile_image(store: Store, image: StoredImage, settings: Settings) -> None:
    """Make the byte code that the image's wheels lack; nothing where it has no Python of ours."""
    stack = store.layers(image.layers)
    wheels = wheels_of(image, stack or ())
    if not stack or not wheels:
        return
    from danlu.builder.embedded.build import run_sync
    from danlu.builder.embedded.context import Context
    from danlu.builder.embedded.interpreter import find_interpreter
    from danlu.builder.embedded.ops.bytecode import compile_layers
    from danlu.sandbox.sandbox import Sandbox

    interpreter = find_interpreter(store, stack, str(image.metadata["python"]))
    with store.staging() as work:
        context = Context(
            store=store,
            paths=settings.paths,
            config=settings.config,
            sandbox=partial(Sandbox, work, name=settings.config.runtime),
            project=work,
            below=tuple(stack),
            inputs=(),
            log=lambda line: None,
            transfer=lambda current, total: None,
            run_sync=run_sync,
            offline=True,
        )
        made = await compile_layers(wheels, interpreter, _scheme(image), context)
    diff_ids = [layer.diff_id for layer in made]
    store.put_record(bytecode_key(image), {"layers": diff_ids}, layers=diff_ids)


def _scheme(image: StoredImage) -> Scheme:
    from danlu.graph import Scheme

    fields = ("prefix", "version", "site_packages", "interpreter")
    return Scheme(**{name: str(image.metadata[name]) for name in fields})
