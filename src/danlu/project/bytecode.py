"""Bytecode of installed packages: what an image records about its Python, and compiling it.

Images have none: it is compiled in the background and laid over them when they start here. Where
other programs start them, Python compiles the packages in each new container, unless the bytecode
is part of the image (:func:`add_bytecode`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from danlu.errors import UsageError
from danlu.sandbox.emulation import is_foreign_image
from danlu.sandbox.launcher.bytecode_layers import (
    find_unmodified_wheels,
    find_wheel_layers,
    list_prefixes,
    record_bytecode,
    site_directory,
)

if TYPE_CHECKING:
    from danlu.engine.settings import Settings
    from danlu.graph.ops import InstallScheme
    from danlu.oci.digest import DiffId
    from danlu.store import Layer, Store, StoredImage

#: What exporting costs without bytecode, for images that :func:`lacks_bytecode` names.
BYTECODE_NOTE = (
    "note: the image has no bytecode, so that new containers compile packages on their first"
    " import; --bytecode adds it"
)

_SCHEME_FIELDS = ("prefix", "version", "site_packages", "interpreter")


def describe_python(executable: str, scheme: InstallScheme) -> dict[str, str]:
    """Return an image's metadata about its Python, which :func:`compile_image` reads."""
    return {"python": executable} | {name: getattr(scheme, name) for name in _SCHEME_FIELDS}


def lacks_bytecode(store: Store, image: StoredImage) -> bool:
    """Return whether Python has to compile packages of the image where danlu does not start it."""
    stack = None if image.metadata.get("bytecode") else store.layers(image.layers)
    # Every Python has pip, which hardly anybody imports.
    return stack is not None and len(find_wheel_layers(image, stack)) > 1


def add_bytecode(store: Store, image: StoredImage, settings: Settings) -> StoredImage:
    """Return the image with the bytecode of its packages as its last layer.

    The result is stored, and the same for every machine and time. Raises :class:`UsageError` if the
    image has no packages to compile, or is for another processor.
    """
    from danlu.builder.embedded.bytecode_compiler import merge_bytecode
    from danlu.oci.image import extend_config

    if is_foreign_image(image.config):
        raise UsageError(
            "cannot compile bytecode for another processor",
            hint="leave out --bytecode, or build on a machine with that processor",
        )
    if image.metadata.get("bytecode"):
        return image
    with store.lease():
        compiled = anyio.run(compile_image, store, image, settings)
        if not compiled:
            raise UsageError(
                "the image has no Python packages to compile", hint="leave out --bytecode"
            )
        layer = merge_bytecode(compiled.values(), store.layers(image.layers) or (), store)
        config = extend_config(image.config, layer.diff_id, layer.created_by)
        diff_ids = [*image.layers, layer.diff_id]
        return store.put_image(config, diff_ids, metadata={**image.metadata, "bytecode": "yes"})


async def compile_image(
    store: Store, image: StoredImage, settings: Settings
) -> dict[DiffId, Layer]:
    """Compile the bytecode that the layers of the image's Python packages lack; return all of it.

    Does nothing for an image without a Python installed by danlu, and for another processor.
    """
    if is_foreign_image(image.config):
        return {}
    stack = store.layers(image.layers)
    packages = {
        prefix: find_unmodified_wheels(stack or (), site_directory(image, prefix))
        for prefix in list_prefixes(image)
    }
    if not stack or not any(packages.values()):
        return {}
    from msgspec.structs import replace

    # Builds only need `describe_python`; the sandbox is loaded by the maintenance process.
    from danlu.builder.embedded.build import run_sync
    from danlu.builder.embedded.bytecode_compiler import compile_layers
    from danlu.builder.embedded.context import OpContext, SolveRequest, VertexResult
    from danlu.graph.ops import InstallScheme
    from danlu.sandbox.launcher.bytecode_layers import find_interpreter
    from danlu.sandbox.sandbox import Sandbox

    interpreter = find_interpreter(store, stack, str(image.metadata["python"]))
    scheme = InstallScheme(**{name: str(image.metadata[name]) for name in _SCHEME_FIELDS})
    config = settings.config
    with store.staging() as work:
        context = OpContext(
            request=SolveRequest(work, offline=True),
            store=store,
            paths=settings.paths,
            config=config,
            sandbox=partial(Sandbox, work, name=config.runtime, seccomp=config.seccomp),
            inputs=(VertexResult(tuple(stack), tuple(stack)),),
            log=lambda line: None,
            transfer=lambda current, total, unit="": None,
            run_sync=run_sync,
        )
        compiled: dict[DiffId, Layer] = {}
        for prefix, wheels in packages.items():
            place = replace(scheme, prefix=prefix)
            compiled |= await compile_layers(wheels, interpreter, place, context)
    record_bytecode(store, image, compiled)
    return compiled
