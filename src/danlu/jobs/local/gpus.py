"""The GPUs of this machine, as NVIDIA's own program names them."""

from __future__ import annotations

import os
import shutil
import subprocess

from danlu.errors import MachineError

__all__ = ["present"]

_LIMIT = 30


def present() -> tuple[int, ...]:
    """The indexes of the GPUs there are; none where ``nvidia-smi`` is not.

    Where ``CUDA_VISIBLE_DEVICES`` names some by index, only those are there for us. Raises
    :class:`MachineError` where the driver does not answer.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, "--query-gpu=index", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        hint = "look at what `nvidia-smi` prints; the driver may need to be loaded"
        raise MachineError("the GPUs of this machine do not answer", hint=hint) from error
    found = tuple(int(word) for word in done.stdout.split() if word.isdigit())
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return found
    names = {word.strip() for word in allowed.split(",")}
    if names <= {str(one) for one in found} | {""}:
        return tuple(one for one in found if str(one) in names)
    return found
