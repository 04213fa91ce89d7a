"""Whether this machine's processor has what the programs of an image need."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from danlu.errors import MachineError
from danlu.graph.processor_level import (
    LEVEL_ARCHITECTURE,
    LEVEL_LABEL,
    PROCESSOR_LEVELS,
    choose_level,
    find_missing_flags,
)
from danlu.oci.types import Config, parse_config
from danlu.sandbox.emulation import is_foreign_image, read_image_platform, require_emulation
from danlu.store import Store, StoredImage

_CPUINFO = Path("/proc/cpuinfo")
#: That of OCI's platforms for a level.
_VARIANTS = {level.rpartition("-")[2]: level for level in PROCESSOR_LEVELS}
_MAX_FLAGS = 4


def read_image_level(config: bytes) -> str:
    """Return the level of processors that an image needs; empty if all of its architecture do."""
    return _read_level(parse_config(config).value)


def require_processor(config: bytes, name: str) -> None:
    """Raise :class:`MachineError` if this machine cannot run the programs of an image.

    ``config`` is the image's configuration; ``name`` says in the message what needs them.
    """
    if is_foreign_image(config):
        require_emulation(read_image_platform(config), name)
        return
    level = read_image_level(config)
    flags = _read_flags() if level else ()
    # Sandboxes such as gVisor may hide them.
    missing = find_missing_flags(level, flags) if flags else ()
    if not missing:
        return
    shown = ", ".join(missing[:_MAX_FLAGS]) + (", …" if len(missing) > _MAX_FLAGS else "")
    raise MachineError(
        f"{name} needs a processor of level {level}, and this machine's lacks {shown}",
        hint="run it on another machine, or build it with a lower `variant` in base()",
    )


def require_image_processor(store: Store, digest: str) -> None:
    """Raise :class:`MachineError` if this machine cannot run the programs of an image in ``store``.

    An image that the store lacks is not checked.
    """
    image = store.image(digest)
    if image is not None:
        require_processor(image.config, describe_image(image))


def describe_image(image: StoredImage) -> str:
    """Return ``image NAME`` for a message, or ``the image`` if it has no name."""
    return f"image {image.names[0]}" if image.names else "the image"


def find_machine_level() -> str:
    """Return the highest level that this machine's processor has; empty if none, or unknown."""
    flags = _read_flags()
    return choose_level(
        *(level for level in PROCESSOR_LEVELS if not find_missing_flags(level, flags))
    )


def _read_level(config: Config) -> str:
    if config.architecture != LEVEL_ARCHITECTURE:
        return ""
    labels = (config.config.labels if config.config else None) or {}
    # Images of others have only the variant.
    return choose_level(labels.get(LEVEL_LABEL, ""), _VARIANTS.get(config.variant or "", ""))


def _read_flags() -> Collection[str]:
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return ()
    # The same for all cores that programs are moved between.
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())
