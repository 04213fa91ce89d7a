"""Exec credential plugins: programs named by a kubeconfig (client.authentication.k8s.io)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from datetime import datetime, timedelta

import anyio
import msgspec

from danlu.errors import MachineError, OutsideError, UsageError
from danlu.kube.clock import REAL_CLOCK, Clock
from danlu.kube.config import ClientCertificate, ClientIdentity
from danlu.util.decoding import decode_json
from danlu.util.process import CompletedProcess, run
from danlu.util.sanitize import escape_unprintable, strip_control_sequences

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
#: A credential is renewed before it expires, so that it is still valid when a request arrives.
_EXPIRY_MARGIN = timedelta(seconds=10)
_TIMEOUT_SECONDS = 60.0
_MAX_ERROR_LINES = 10


class _ExecEnvVar(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class ExecConfig(msgspec.Struct, frozen=True, rename="camel"):
    """The ``exec`` section of a kubeconfig user (client-go, api/v1 ExecConfig)."""

    command: str
    api_version: str = _VERSIONS[0]
    args: list[str] | None = None
    env: list[_ExecEnvVar] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"


class _ExecCredentialStatus(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    status: _ExecCredentialStatus


class ExecPlugin:
    """Credentials that run a program, and run it again when its credential expires or is rejected.

    Concurrent requests run the program once. ``cluster`` holds the fields of the kubeconfig's
    cluster, for plugins with ``provideClusterInfo``.
    """

    def __init__(
        self,
        config: ExecConfig,
        *,
        cluster: Mapping[str, object],
        environ: Mapping[str, str] = os.environ,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        if config.api_version not in _VERSIONS:
            raise UsageError(
                f"{config.command}: unsupported credential plugin version {config.api_version}",
                hint=f"install a newer version of it that supports {_VERSIONS[0]}",
            )
        if config.interactive_mode == "Always":
            raise UsageError(
                f"{config.command}: credential plugins with interactiveMode: Always"
                " are not supported"
            )
        self._config = config
        self._cluster = cluster
        self._environ = environ
        self._clock = clock
        self._lock = anyio.Lock()
        self._cached: ClientIdentity | None = None
        self._expires_at: datetime | None = None

    async def get_identity(self) -> ClientIdentity:
        """Return the identity from the program, cached until it expires.

        Raises:
            MachineError: The program is not installed.
            OutsideError: The program failed, or its output is invalid.
        """
        async with self._lock:
            if self._cached is None or self._needs_renewal():
                completed = await self._run_program()
                self._cached, self._expires_at = self._parse_credential(completed)
            return self._cached

    def invalidate(self) -> bool:
        """Run the program again for the next request."""
        self._cached = None
        return True

    def _needs_renewal(self) -> bool:
        expires_at = self._expires_at
        return expires_at is not None and self._clock.now() >= expires_at - _EXPIRY_MARGIN

    async def _run_program(self) -> CompletedProcess:
        config = self._config
        variables = {variable.name: variable.value for variable in config.env or ()}
        environ = {**self._environ, **variables}
        environ["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(self._exec_info()).decode()
        # Checked here because a program that cannot be started only shows as a bad exit code.
        if shutil.which(config.command, path=environ.get("PATH")) is None:
            raise MachineError(
                f"credential plugin {config.command} not found",
                hint=config.install_hint
                or "it is named by the kubeconfig, under users[].user.exec",
            )
        try:
            with anyio.fail_after(_TIMEOUT_SECONDS):
                completed = await run([config.command, *(config.args or ())], env=environ)
        except TimeoutError as error:
            raise OutsideError(
                f"credential plugin {config.command} did not finish within {_TIMEOUT_SECONDS:.0f} s"
            ) from error
        if completed.code:
            lines = completed.stderr.decode(errors="replace").split("\n")
            printable = tuple(strip_control_sequences(line) for line in lines if line.strip())
            raise OutsideError(
                f"credential plugin {config.command} failed with exit code {completed.code}",
                details=printable[-_MAX_ERROR_LINES:],
            )
        return completed

    def _exec_info(self) -> Mapping[str, object]:
        spec: dict[str, object] = {"interactive": False}
        if self._config.provide_cluster_info:
            spec["cluster"] = self._cluster
        return {"apiVersion": self._config.api_version, "kind": "ExecCredential", "spec": spec}

    def _parse_credential(
        self, completed: CompletedProcess
    ) -> tuple[ClientIdentity, datetime | None]:
        try:
            credential = decode_json(completed.stdout, _ExecCredential)
        except msgspec.MsgspecError:
            # Without the decoder's message, which could contain a part of the secret.
            raise self._invalid_output("not an ExecCredential") from None
        if credential.api_version != self._config.api_version:
            raise self._invalid_output(
                f"it has version {escape_unprintable(credential.api_version)}"
            )
        status = credential.status
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise self._invalid_output("a certificate and a key are needed, only one is given")
        if not status.token and not status.client_key_data:
            raise self._invalid_output("neither a token nor a certificate")
        headers = (("Authorization", f"Bearer {status.token}"),) if status.token else ()
        certificate = None
        if status.client_key_data:
            certificate = ClientCertificate(
                status.client_certificate_data.encode(), status.client_key_data.encode()
            )
        return ClientIdentity(headers, certificate), status.expiration_timestamp

    def _invalid_output(self, reason: str) -> OutsideError:
        return OutsideError(f"invalid output of credential plugin {self._config.command}: {reason}")
