"""The language module that lets SoS notebooks pass variables to and from the kernel ``danlu``.

SoS finds it by the entry point group ``sos_languages`` and runs it in its own kernel's process,
where danlu is installed beside sos-notebook; the other half, :mod:`danlu.notebook.exchange`, runs
in the kernel. What it must have is in SoS's "Language modules" and in ``sos_notebook.kernel``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from danlu.notebook.exchange import MIME, pack, unpack

__all__ = ["Language", "SosKernel"]

_HALF = "__import__('danlu.notebook.exchange', fromlist=['take'])"


class SosKernel(Protocol):
    """What a language module may ask of SoS's kernel, in SoS's order of arguments."""

    async def run_cell(self, code: str, silent: bool, store_history: bool) -> Any:
        """Run ``code`` in the present kernel and give its ``execute_reply``."""

    def get_response(self, statement: str, msg_types: Sequence[str]) -> list[list[Any]]:
        """Run ``statement`` and give the (type, content) of its messages of these types."""

    def warn(self, message: str) -> None:
        """Write to the cell's stderr."""


class Language:
    """How SoS talks to the kernel ``danlu``, which it calls ``Danlu``."""

    supported_kernels = {"Danlu": ["danlu"]}
    background_color = "#F6D9C6"
    options = {
        "variable_pattern": r"^\s*[_A-Za-z0-9\.]+\s*$",
        "assignment_pattern": r"^\s*([_A-Za-z0-9\.]+)\s*=.*$",
        "indentation_aware": True,
    }
    cd_command = "import os;os.chdir({dir!r})"
    init_statements = ""

    def __init__(self, sos_kernel: SosKernel, kernel_name: str = "danlu") -> None:
        self.sos_kernel = sos_kernel
        self.kernel_name = kernel_name

    async def get_vars(self, names: Sequence[str], as_var: str | None = None) -> None:
        """``%get``: give the kernel variables of SoS's; what cannot travel is said."""
        from sos.utils import env  # type: ignore[import-not-found]

        for name in names:
            try:
                text = pack(env.sos_dict[name])
            except Exception as error:
                self._tell(name, f"{type(error).__name__}: {error}")
                continue
            told = {as_var or name: text}
            reply = await self.sos_kernel.run_cell(f"{_HALF}.take({told!r})", True, False)
            if reply and reply.get("status") == "error":
                self._tell(name, f"{reply.get('ename')}: {reply.get('evalue')}")

    def put_vars(
        self, items: Sequence[str], to_kernel: str | None = None, as_var: str | None = None
    ) -> dict[str, Any]:
        """``%put``: the kernel's variables, for SoS, which hands them on to ``to_kernel``."""
        code = f"{_HALF}.give({list(items)!r}, called={as_var or ''!r})"
        values: dict[str, Any] = {}
        for message in _messages(self.sos_kernel.get_response(code, ["display_data"])):
            for name, why in message["failed"].items():
                self._tell(name, why)
            for name, text in message["values"].items():
                try:
                    values[name] = unpack(text)
                except Exception as error:  # of a class or of a package that is not here
                    self._tell(name, f"{type(error).__name__}: {error}")
        return values

    def sessioninfo(self) -> list[tuple[str, str]]:
        """``%sessioninfo``: what this is."""
        from danlu import __version__

        return [("danlu", __version__)]

    def _tell(self, name: str, why: str) -> None:
        self.sos_kernel.warn(f"{name} is not passed between SoS and {self.kernel_name}: {why}")


def _messages(responses: Sequence[Sequence[Any]]) -> Iterator[Mapping[str, Any]]:
    for _, content in responses:
        if MIME in content["data"]:
            yield content["data"][MIME]
