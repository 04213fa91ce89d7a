"""Commands of danlu that the server runs in a process of their own.

Starting environments and checking the machine change namespaces and fork, which a process with
threads must not.
"""

from __future__ import annotations

import asyncio
import os
import subprocess

from danlu.errors import OutsideError
from danlu.util.danlu_program import CONTEXT_VARIABLE, LOCAL_CONTEXT, danlu_program
from danlu.util.sanitize import strip_control_sequences


async def run_command(*words: str, codes: tuple[int, ...] = (0,)) -> str:
    """Run a command on this machine, and return what it prints.

    Raises :class:`OutsideError` with its message if it exits with another code.
    """
    process = await asyncio.create_subprocess_exec(
        *danlu_program(),
        *words,
        env={**os.environ, CONTEXT_VARIABLE: LOCAL_CONTEXT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, errors = await process.communicate()
    if process.returncode not in codes:
        lines = strip_control_sequences(errors.decode(errors="replace")).splitlines()
        message = next((line for line in lines if line.startswith("error:")), " ".join(lines[-1:]))
        hint = next((line for line in lines if line.startswith("hint:")), "")
        raise OutsideError(
            message.removeprefix("error: ") or f"danlu {words[0]} failed",
            hint=hint.removeprefix("hint: "),
        )
    return output.decode(errors="replace")
