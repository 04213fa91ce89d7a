"""Exchange variables between SoS notebooks and the ``danlu`` kernel.

SoS loads :class:`Language` through the entry point group ``sos_languages`` and runs it in its own
kernel process, where danlu is installed next to sos-notebook. :func:`send_variables` and
:func:`receive_variables` run in the danlu kernel, called by code that SoS sends there. The
interface is described in SoS's "Language modules" and in ``sos_notebook.kernel``.

A value is a base64-encoded pickle. Values are pickled one by one, so that one that cannot be
pickled does not affect the others.
"""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import danlu

#: The type of the message with values: ``{"values": {name: base64}, "failed": {name: reason}}``.
MIME = "application/vnd.danlu.values+json"

#: An expression for this module, for code that runs in the user's namespace.
_THIS_MODULE = "__import__('danlu.notebook.sos', fromlist=['send_variables'])"


def encode_value(value: Any) -> str:
    """Encode a value as text; raises whatever pickling raises."""
    return b64encode(pickle.dumps(value)).decode()


def decode_value(text: str) -> Any:
    """Decode a value; raises whatever unpickling raises, such as an import error."""
    return pickle.loads(b64decode(text))


# -- in the danlu kernel --------------------------------------------------------------------------


def send_variables(items: Sequence[str], *, name: str = "") -> None:
    """Publish the values of ``items``, which are variables or expressions, as a message for SoS.

    ``name`` is the name of a single value in the other kernel.
    """
    shell = _current_shell()
    values: dict[str, str] = {}
    failed: dict[str, str] = {}
    for item in items:
        try:
            values[name or item] = encode_value(shell.ev(item))
        except Exception as error:
            failed[name or item] = f"{type(error).__name__}: {error}"
    shell.display_pub.publish({MIME: {"values": values, "failed": failed}})


def receive_variables(values: Mapping[str, str]) -> None:
    """Set variables of the notebook: all of them, or none if one cannot be decoded."""
    _current_shell().user_ns.update({name: decode_value(text) for name, text in values.items()})


def _current_shell() -> Any:
    # Imported late: SoS's process, which also loads this module, need not have IPython's shell.
    from IPython.core.getipython import get_ipython

    return get_ipython()


# -- in SoS's kernel ------------------------------------------------------------------------------


class SosKernel(Protocol):
    """What a language module uses of SoS's kernel, with its order of arguments."""

    async def run_cell(self, code: str, silent: bool, store_history: bool) -> Any:
        """Run ``code`` in the current kernel and return its ``execute_reply``."""

    def get_response(self, statement: str, msg_types: Sequence[str]) -> list[list[Any]]:
        """Run ``statement`` and return the (type, content) of its messages of these types."""

    def warn(self, message: str) -> None:
        """Write to the cell's stderr."""


class Language:
    """SoS's language module for the kernel ``danlu``, which SoS calls ``Danlu``."""

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
        """Send variables of SoS to the kernel (``%get``), with a warning for each failure."""
        # Imported late: only SoS's process has it.
        from sos.utils import env  # type: ignore[import-not-found]

        for name in names:
            try:
                text = encode_value(env.sos_dict[name])
            except Exception as error:
                self._warn_about_variable(name, f"{type(error).__name__}: {error}")
                continue
            values = {as_var or name: text}
            code = f"{_THIS_MODULE}.receive_variables({values!r})"
            reply = await self.sos_kernel.run_cell(code, True, False)
            if reply and reply.get("status") == "error":
                self._warn_about_variable(name, f"{reply.get('ename')}: {reply.get('evalue')}")

    def put_vars(
        self, items: Sequence[str], to_kernel: str | None = None, as_var: str | None = None
    ) -> dict[str, Any]:
        """Return variables of the kernel (``%put``), with a warning for each failure."""
        code = f"{_THIS_MODULE}.send_variables({list(items)!r}, name={as_var or ''!r})"
        values: dict[str, Any] = {}
        for message in _value_messages(self.sos_kernel.get_response(code, ["display_data"])):
            for name, reason in message["failed"].items():
                self._warn_about_variable(name, reason)
            for name, text in message["values"].items():
                try:
                    values[name] = decode_value(text)
                except Exception as error:  # for example its class cannot be imported here
                    self._warn_about_variable(name, f"{type(error).__name__}: {error}")
        return values

    def sessioninfo(self) -> list[tuple[str, str]]:
        """Return the versions that ``%sessioninfo`` shows."""
        return [("danlu", danlu.__version__)]

    def _warn_about_variable(self, name: str, reason: str) -> None:
        self.sos_kernel.warn(f"cannot transfer {name} between SoS and {self.kernel_name}: {reason}")


def _value_messages(responses: Sequence[Sequence[Any]]) -> Iterator[Mapping[str, Any]]:
    for _, content in responses:
        if MIME in content["data"]:
            yield content["data"][MIME]
