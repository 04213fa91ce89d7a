"""Which repositories have a blob, as far as this machine saw: a push can mount it from there."""

from __future__ import annotations

from collections.abc import Sequence

from danlu.oci.digest import DiffId, Digest
from danlu.store import Store

_MAX_REPOSITORIES = 4


class StoredBlobLocations:
    """The repositories from which or to which this store's layers were transferred.

    They are records of the store that live as long as the layer. They may be outdated, because
    registries delete blobs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def find_repositories(self, registry: str, digest: Digest) -> Sequence[str]:
        """Return the repositories of ``registry`` that had the blob, the latest first."""
        record = self._store.record(_record_key(registry, digest)) or {}
        return [str(name) for name in record.get("repositories", ())]

    def record_repository(
        self, registry: str, repository: str, digest: Digest, diff_id: DiffId
    ) -> None:
        """Record that a repository has the blob of a layer."""
        known = self.find_repositories(registry, digest)
        if repository not in known:
            self._store.put_record(
                _record_key(registry, digest),
                {"repositories": [repository, *known][:_MAX_REPOSITORIES]},
                layers=[diff_id],
            )


def _record_key(registry: str, digest: Digest) -> str:
    return f"blob-repositories:{registry}:{digest}"
