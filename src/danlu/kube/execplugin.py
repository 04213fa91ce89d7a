"""Credentials of a program: the exec plug-ins of kubeconfigs (client.authentication.k8s.io)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from datetime import datetime, timedelta

import anyio
import msgspec

from danlu.errors import MachineError, OutsideError, UsageError
from danlu.kube.access import Certificate, Identity
from danlu.kube.clock import REAL
from danlu.kube.failures import printable
from danlu.kube.types import Clock
from danlu.util.process import Completed, run

__all__ = ["ExecPlugin", "ExecSpec"]

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
#: An expiring credential is not used in its last seconds: the request must arrive in time.
_MARGIN = timedelta(seconds=10)
_SECONDS = 60.0


class _Variable(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class ExecSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The program as a kubeconfig describes it (client-go, api/v1 ExecConfig)."""

    command: str
    api_version: str = _VERSIONS[0]
    args: list[str] | None = None
    env: list[_Variable] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"


class _Given(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _Answer(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    status: _Given


class ExecPlugin:
    """Runs the program when an identity is needed, and again when it ends or was refused.

    ``cluster`` is told to a program that asks for it (fields of the kubeconfig's cluster). Many
    requests at once run it once.
    """

    def __init__(
        self,
        spec: ExecSpec,
        *,
        cluster: Mapping[str, object],
        environ: Mapping[str, str] = os.environ,
        clock: Clock = REAL,
    ) -> None:
        if spec.api_version not in _VERSIONS:
            raise UsageError(
                f"{spec.command} speaks {spec.api_version}, which is not understood",
                hint=f"a newer version of it speaks {_VERSIONS[0]}",
            )
        if spec.interactive_mode == "Always":
            raise UsageError(f"{spec.command} wants to ask at a terminal, which danlu does not do")
        self._spec = spec
        self._cluster = cluster
        self._environ = environ
        self._clock = clock
        self._lock = anyio.Lock()
        self._known: Identity | None = None
        self._ends: datetime | None = None

    async def identity(self) -> Identity:
        """The program's answer, kept as long as it says.

        Raises :class:`MachineError` where the program is missing, :class:`OutsideError` where it
        fails or answers without sense.
        """
        async with self._lock:
            if self._known is None or self._ended():
                self._known, self._ends = self._read(await self._run())
            return self._known

    def refused(self) -> bool:
        """Ask the program again."""
        self._known = None
        return True

    def _ended(self) -> bool:
        return self._ends is not None and self._clock.now() >= self._ends - _MARGIN

    async def _run(self) -> Completed:
        spec = self._spec
        environ = {**self._environ, **{one.name: one.value for one in spec.env or ()}}
        environ["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(self._request()).decode()
        # Asked before, for what runs it would only say that it ended badly.
        if shutil.which(spec.command, path=environ.get("PATH")) is None:
            raise MachineError(
                f"the program {spec.command}, which gives the cluster's credentials, is not here",
                hint=spec.install_hint or "the kubeconfig's user names it under exec",
            )
        try:
            with anyio.fail_after(_SECONDS):
                done = await run([spec.command, *(spec.args or ())], env=environ)
        except TimeoutError as error:
            raise OutsideError(f"{spec.command} gave no credentials in {_SECONDS:.0f} s") from error
        if done.code:
            said = tuple(
                printable(line)
                for line in done.stderr.decode(errors="replace").split("\n")
                if line.strip()
            )
            raise OutsideError(
                f"{spec.command} gave no credentials: it ended with {done.code}",
                details=said[-10:],
            )
        return done

    def _request(self) -> Mapping[str, object]:
        spec: dict[str, object] = {"interactive": False}
        if self._spec.provide_cluster_info:
            spec["cluster"] = self._cluster
        return {"apiVersion": self._spec.api_version, "kind": "ExecCredential", "spec": spec}

    def _read(self, done: Completed) -> tuple[Identity, datetime | None]:
        try:
            answer = msgspec.json.decode(done.stdout, type=_Answer)
        except msgspec.MsgspecError:
            # Not the reason, which could hold a part of the secret.
            raise self._senseless("is no ExecCredential") from None
        if answer.api_version != self._spec.api_version:
            raise self._senseless(f"is of version {printable(answer.api_version)}")
        given = answer.status
        if bool(given.client_certificate_data) != bool(given.client_key_data):
            raise self._senseless("has a certificate or a key, not both")
        if not given.token and not given.client_key_data:
            raise self._senseless("has neither a token nor a certificate")
        headers = (("Authorization", f"Bearer {given.token}"),) if given.token else ()
        certificate = None
        if given.client_key_data:
            certificate = Certificate(
                given.client_certificate_data.encode(), given.client_key_data.encode()
            )
        return Identity(headers, certificate), given.expiration_timestamp

    def _senseless(self, why: str) -> OutsideError:
        return OutsideError(f"what {self._spec.command} printed {why}")
