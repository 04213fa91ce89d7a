"""Resolve base images: pin their digest, and inspect their system, C library and Python."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import asdict

from danlu.environment.lock import MAX_EPOCH, LockedBase, LockedImage
from danlu.errors import OutsideError, ResolveError, UsageError
from danlu.graph.image_config import parse_image_config
from danlu.oci.digest import Digest
from danlu.resolve.context import ResolveContext
from danlu.resolve.system import require_apt
from danlu.sandbox.sandbox import Sandbox
from danlu.sandbox.types import SYSTEM_PATH, ProcessSpec, RootFilesystem
from danlu.sources.image import (
    find_local_digest,
    pull,
    raise_with_local_hint,
    resolve_reference,
)
from danlu.store import Layer
from danlu.util.safe_paths import ProjectTree


async def resolve_digest(reference: str, context: ResolveContext) -> str:
    """Return the digest that ``reference`` currently has for the platform.

    It is that of an image built on this machine, or else that of a registry's manifest.
    """
    local = find_local_digest(reference, context.platform, store=context.store)
    if local is not None:
        context.report(f"using the image {reference} of this machine's store")
        return local
    try:
        return await resolve_reference(
            reference, context.platform, config=context.config, offline=context.offline
        )
    except OutsideError as error:
        raise_with_local_hint(error, reference)


async def resolve_image_base(reference: str, context: ResolveContext) -> LockedBase:
    """Resolve an image to a base: digest, creation time, distribution, C library and Python.

    Pulls the image, because only its files contain this information; the build needs it anyway.
    """
    digest = await resolve_digest(reference, context)
    stored = context.store.image(digest)
    if stored is not None and (editable := stored.metadata.get("editable")):
        raise ResolveError(
            f"{reference} cannot be a base: {editable} is installed with -e in it, from a project"
            " that is not this one",
            hint="build that image from a copy of the package: without -e",
        )
    known = await inspect_image(reference, digest, context)
    return LockedBase(
        inputs="",
        epoch=known.epoch,
        distribution=known.probe.distribution,
        codename=known.probe.codename,
        libc=known.probe.libc,
        image=LockedImage(reference, digest),
        interpreter=known.probe.interpreter,
        python=known.probe.python,
    )


class ImageInspection(msgspec.Struct, frozen=True):
    """What the configuration and the files of an image say about it."""

    epoch: int
    probe: ImageProbe


async def inspect_image(reference: str, digest: str, context: ResolveContext) -> ImageInspection:
    """Pull the image and inspect it; the result is cached by digest."""
    store = context.store
    # A digest never changes its content, so the result stays valid as long as its layers exist.
    key = f"inspected-2:{digest}"
    if (record := store.record(key)) is not None:
        return ImageInspection(record["epoch"], ImageProbe(**record["probe"]))
    pulled = await pull(
        reference, digest, store=store, config=context.config, offline=context.offline
    )
    variables = dict(parse_image_config(pulled.config).environment)
    result = await probe_image(pulled.layers, context, path=variables.get("PATH", SYSTEM_PATH))
    inspected = ImageInspection(parse_creation_time(pulled.config), result)
    value: dict[str, Any] = {"epoch": inspected.epoch, "probe": result.fields()}
    store.put_record(key, value, layers=[layer.diff_id for layer in pulled.layers])
    return inspected


def parse_creation_time(config: bytes) -> int:
    """Return the config's ``created`` (RFC 3339) in seconds since 1970; 0 if it is invalid."""
    try:
        moment = datetime.fromisoformat(json.loads(config)["created"])
    except (KeyError, TypeError, ValueError):
        return 0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max(0, int(moment.timestamp())), MAX_EPOCH)


async def read_dpkg_status(base: LockedBase, context: ResolveContext) -> str:
    """Return ``/var/lib/dpkg/status`` of an image base."""
    assert base.image is not None
    require_apt(base)
    pulled = await pull(
        base.image.reference,
        Digest(base.image.digest),
        store=context.store,
        config=context.config,
        offline=context.offline,
    )
    for layer in reversed(pulled.layers):
        try:
            # ProjectTree, because the image is untrusted: its symlinks may point anywhere.
            with ProjectTree(layer.tree) as tree:
                return tree.read_bytes("var/lib/dpkg/status").decode("utf-8", "replace")
        except (FileNotFoundError, IsADirectoryError, UsageError):
            continue
    raise OutsideError(
        f"image {base.image.reference} has no dpkg database",
        hint="install.apt_packages requires a Debian or Ubuntu base",
    )


_SCRIPT = """
. /etc/os-release 2>/dev/null
echo "distribution=$ID"
echo "codename=$VERSION_CODENAME"
if command -v getconf >/dev/null && getconf GNU_LIBC_VERSION >/dev/null 2>&1; then
    echo "libc=$(getconf GNU_LIBC_VERSION)"
else
    for file in /lib/ld-musl-*.so.1; do
        [ -e "$file" ] && echo "libc=musl $("$file" 2>&1 | sed -n 's/^Version //p')"
    done
fi
for python in python3 python /usr/local/bin/python3 /usr/bin/python3; do
    command -v "$python" >/dev/null || continue
    "$python" - <<'END' && break
import os, sys
assert sys.version_info >= (3, 8)
print("interpreter=" + os.path.realpath(sys.executable))
print("python=%d.%d.%d" % sys.version_info[:3])
END
done
true
"""


class ImageProbe(msgspec.Struct, frozen=True):
    """The system, C library and Python in an image; empty if it has none.

    ``libc`` is ``glibc 2.36`` or ``musl 1.2.4``; ``python`` is the full version of the interpreter
    at ``interpreter``.
    """

    distribution: str = ""
    codename: str = ""
    libc: str = ""
    interpreter: str = ""
    python: str = ""

    def fields(self) -> dict[str, str]:
        """Return the fields as plain values."""
        return asdict(self)


async def probe_image(
    layers: Sequence[Layer], context: ResolveContext, *, path: str = SYSTEM_PATH
) -> ImageProbe:
    """Run a short shell script in the image, with ``path`` as its PATH, and parse its output."""
    values: dict[str, str] = {}

    def heard(line: str) -> None:
        name, equals, value = line.partition("=")
        if equals and name in ImageProbe.__struct_fields__:
            values[name] = value.strip()

    # The interpreter and its libc are the image's own, so they are asked in a container, without
    # a network: the image is untrusted.
    process = ProcessSpec(("/bin/sh", "-c", _SCRIPT), {"PATH": path})
    with context.store.staging() as work:
        root = RootFilesystem(tuple(layer.tree for layer in layers))
        sandbox = Sandbox(work, name=context.config.runtime, seccomp=context.config.seccomp)
        await sandbox.run(process, root, network=False, on_line=heard)
    return ImageProbe(**values)
