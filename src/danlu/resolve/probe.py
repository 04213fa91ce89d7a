"""Looking into an image: which system, C library and Python it holds, asked of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import asdict

from danlu.sandbox.sandbox import Sandbox
from danlu.sandbox.types import SYSTEM_PATH, Process, Root

if TYPE_CHECKING:
    from danlu.resolve.resolve import Resolving
    from danlu.store import Layer

__all__ = ["Probe", "probe"]

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


class Probe(msgspec.Struct, frozen=True):
    """What an image says of itself; empty where it has no such thing.

    ``libc`` is ``glibc 2.36`` or ``musl 1.2.4``; ``python`` a full version, of the interpreter
    that lies at ``interpreter``.
    """

    distribution: str = ""
    codename: str = ""
    libc: str = ""
    interpreter: str = ""
    python: str = ""

    def fields(self) -> dict[str, str]:
        """As plain values."""
        return asdict(self)


async def probe(layers: Sequence[Layer], resolving: Resolving) -> Probe:
    """Run a few lines of shell in the image and read what they print."""
    found: dict[str, str] = {}

    def heard(line: str) -> None:
        name, equals, value = line.partition("=")
        if equals and name in Probe.__struct_fields__:
            found[name] = value.strip()

    process = Process(("/bin/sh", "-c", _SCRIPT), {"PATH": SYSTEM_PATH})
    with resolving.store.staging() as work:
        root = Root(tuple(layer.tree for layer in layers))
        await Sandbox(work).run(process, root, network=False, on_line=heard)
    return Probe(**found)
