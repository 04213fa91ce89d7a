"""Store and erase credentials where Docker does: a credential helper, or ``config.json``."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from danlu.errors import OutsideError, UsageError
from danlu.oci.registry.credentials import (
    RegistryCredentials,
    find_docker_config,
    find_helper,
    normalize_key,
    run_helper,
    server_key,
)
from danlu.util.files import write_atomic


class CredentialStore:
    """The credentials in Docker's configuration, which other clients read as well.

    Raises :class:`UsageError` if ``config.json`` is damaged: it is never overwritten then.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = dict(os.environ if environ is None else environ)
        #: The file itself: it may be a link into a directory of settings.
        self.path = Path(os.path.realpath(find_docker_config(self._environ)))
        self._config = self._read_config()

    def describe(self, host: str) -> str:
        """Return where the credentials for ``host`` are stored, in words."""
        helper = find_helper(self._config, host)
        return f"docker-credential-{helper}" if helper else str(self.path)

    def is_plain(self, host: str) -> bool:
        """Return whether passwords for ``host`` are stored unencrypted."""
        return not find_helper(self._config, host)

    async def store(self, host: str, credentials: RegistryCredentials) -> None:
        """Store the credentials for ``host``, replacing others.

        Raises :class:`~danlu.oci.registry.credentials.CredentialHelperError` if its helper fails.
        """
        entry: dict[str, str] = {}
        if helper := find_helper(self._config, host):
            fields = {
                "ServerURL": server_key(host),
                "Username": credentials.username,
                "Secret": credentials.password,
            }
            await run_helper(helper, "store", json.dumps(fields).encode(), self._environ)
        else:
            pair = f"{credentials.username}:{credentials.password}".encode()
            entry["auth"] = base64.b64encode(pair).decode()
        # With a helper the entry is empty: Docker lists its logins by the keys.
        self._write_auths(self._list_other_auths(host) | {server_key(host): entry})

    async def erase(self, host: str) -> bool:
        """Erase the credentials for ``host``; return whether there were any.

        Raises :class:`~danlu.oci.registry.credentials.CredentialHelperError` if its helper fails.
        """
        others = self._list_other_auths(host)
        is_found = len(others) < len(self._listed_auths)
        if helper := find_helper(self._config, host):
            server = server_key(host).encode()
            # Some helpers report success for what they do not have, so that it is asked first.
            if await run_helper(helper, "get", server, self._environ) is not None:
                await run_helper(helper, "erase", server, self._environ)
                is_found = True
        if len(others) < len(self._listed_auths):
            self._write_auths(others)
        return is_found

    @property
    def _listed_auths(self) -> dict[str, Any]:
        auths = self._config.get("auths")
        return auths if isinstance(auths, dict) else {}

    def _list_other_auths(self, host: str) -> dict[str, Any]:
        return {
            key: entry for key, entry in self._listed_auths.items() if normalize_key(key) != host
        }

    def _read_config(self) -> dict[str, Any]:
        try:
            value = json.loads(self.path.read_bytes() or b"{}")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise OutsideError(f"cannot read {self.path}: {error.strerror}") from error
        except ValueError as error:
            raise self._damage_error(str(error)) from error
        if not isinstance(value, dict):
            raise self._damage_error("not a JSON object")
        if not isinstance(value.get("auths") or {}, dict):
            raise self._damage_error('"auths" is not a JSON object')
        return value

    def _damage_error(self, reason: str) -> UsageError:
        return UsageError(
            f"{self.path} is damaged: {reason}",
            hint="repair it or move it away; danlu does not overwrite it",
        )

    def _write_auths(self, auths: Mapping[str, Any]) -> None:
        self._config = {**self._config, "auths": dict(auths)}
        # As Docker writes it; only the owner may read passwords.
        text = json.dumps(self._config, indent="\t", ensure_ascii=False) + "\n"
        try:
            if not self.path.parent.exists():
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(self.path, text.encode(), mode=0o600)
        except OSError as error:
            raise OutsideError(f"cannot write {self.path}: {error.strerror}") from error
