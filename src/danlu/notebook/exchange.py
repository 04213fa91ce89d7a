"""The kernel's half of passing values to and from SoS: called by what SoS has the kernel run.

A value is a pickle in base64; a message holds them by name, each for itself, so that one which
cannot travel keeps no other from it.
"""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["MIME", "give", "pack", "take", "unpack"]

#: The type of the message that holds values: ``{"values": {name: base64}, "failed": {name: why}}``.
MIME = "application/vnd.danlu.values+json"


def pack(value: Any) -> str:
    """``value`` as text; raises what its pickling raises."""
    return b64encode(pickle.dumps(value)).decode()


def unpack(text: str) -> Any:
    """The value of :func:`pack`; raises what its unpickling raises, if only a missing module."""
    return pickle.loads(b64decode(text))


def give(items: Sequence[str], *, called: str = "") -> None:
    """Show the values of ``items``, names or expressions, as a message for SoS alone.

    ``called`` is the name that a single one gets on the other side.
    """
    shell = _shell()
    values: dict[str, str] = {}
    failed: dict[str, str] = {}
    for item in items:
        name = called or item
        try:
            values[name] = pack(shell.ev(item))
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    shell.display_pub.publish({MIME: {"values": values, "failed": failed}})


def take(values: Mapping[str, str]) -> None:
    """Set variables of the notebook; raises what unpickling raises, before any is set."""
    _shell().user_ns.update({name: unpack(text) for name, text in values.items()})


def _shell() -> Any:
    from IPython.core.getipython import get_ipython

    return get_ipython()
