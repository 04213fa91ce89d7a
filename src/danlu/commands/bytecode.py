"""Bytecode of installed packages: what an image records about its Python, and compiling it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from danlu.builder.embedded.bytecode_layers import (
    bytecode_key,
    find_unmodified_wheels,
    list_prefixes,
    site_directory,
)
from danlu.sandbox.emulation import is_foreign_image

if TYPE_CHECKING:
    from danlu.commands.settings import Settings
    from danlu.graph.ops import InstallScheme
    from danlu.store import Layer, Store, StoredImage

_SCHEME_FIELDS = ("prefix", "version", "site_packages", "interpreter")


def describe_python(executable: str, scheme: InstallScheme) -> dict[str, str]:
    """Return an image's metadata about its Python, which :func:`compile_image` reads."""
    return {"python": executable} | {name: getattr(scheme, name) for name in _SCHEME_FIELDS}


async def compile_image(store: Store, image: StoredImage, settings: Settings) -> None:
    """Compile the bytecode that the layers of the image's Python packages lack.

    Does nothing for an image without a Python installed by danlu, and for another processor.
    """
    if is_foreign_image(image.config):
        return
    stack = store.layers(image.layers)
    packages = {
        prefix: find_unmodified_wheels(stack or (), site_directory(image, prefix))
        for prefix in list_prefixes(image)
    }
    if not stack or not any(packages.values()):
        return
    from msgspec.structs import replace

    # Builds only need `describe_python`; the sandbox is loaded by the maintenance process.
    from danlu.builder.embedded.build import run_sync
    from danlu.builder.embedded.bytecode_layers import find_interpreter
    from danlu.builder.embedded.context import OpContext
    from danlu.builder.embedded.ops.bytecode import compile_layers
    from danlu.graph.ops import InstallScheme
    from danlu.sandbox.sandbox import Sandbox

    interpreter = find_interpreter(store, stack, str(image.metadata["python"]))
    scheme = InstallScheme(**{name: str(image.metadata[name]) for name in _SCHEME_FIELDS})
    config = settings.config
    with store.staging() as work:
        context = OpContext(
            store=store,
            paths=settings.paths,
            config=config,
            sandbox=partial(Sandbox, work, name=config.runtime, seccomp=config.seccomp),
            project=work,
            below=tuple(stack),
            inputs=(),
            log=lambda line: None,
            transfer=lambda current, total, unit="": None,
            run_sync=run_sync,
            offline=True,
        )
        layers: list[Layer] = []
        for prefix, wheels in packages.items():
            place = replace(scheme, prefix=prefix)
            layers += await compile_layers(wheels, interpreter, place, context)
    diff_ids = [layer.diff_id for layer in layers]
    store.put_record(bytecode_key(image), {"layers": diff_ids}, layers=diff_ids)
