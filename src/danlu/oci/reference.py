"""Image references: parse them as all clients do, and format them."""

from __future__ import annotations

import re

import msgspec
from msgspec.structs import replace

from danlu.errors import UsageError
from danlu.oci.digest import Digest, is_digest

DEFAULT_REGISTRY = "docker.io"
_DEFAULT_NAMESPACE = "library"
_DEFAULT_TAG = "latest"

# The grammar of github.com/distribution/reference, which all clients share.
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_REGISTRY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
# As Docker's grammar of references has it (distribution/reference, RepositoryNameTotalLengthMax).
_MAX_NAME = 255


class Reference(msgspec.Struct, frozen=True, order=True):
    """A full image reference: ``docker.io`` / ``library/debian`` : ``12`` @ ``sha256:…``.

    ``tag`` or ``digest`` may be empty, but not both; if there is a digest, the tag is
    informational.
    """

    registry: str
    repository: str
    tag: str = ""
    digest: Digest | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Return the full reference: ``debian`` is ``docker.io/library/debian:latest``.

        Raises :class:`UsageError` saying what is invalid.
        """
        rest, at, digest = text.partition("@")
        if at and not is_digest(digest):
            raise _invalid_reference(text, f"{digest!r} is not a sha256 digest")
        name, tag = _split_tag(rest)
        if tag is not None and not _TAG.fullmatch(tag):
            raise _invalid_reference(text, f"invalid tag {tag!r}")
        registry, repository = _split_registry(name)
        if not _REGISTRY.fullmatch(registry):
            raise _invalid_reference(text, f"invalid registry {registry!r}")
        if not _REPOSITORY.fullmatch(repository):
            lower = repository.lower()
            hint = f"did you mean {text.replace(repository, lower)}?" if lower != repository else ""
            hint = hint if _REPOSITORY.fullmatch(lower) else ""
            raise _invalid_reference(text, f"invalid repository {repository!r}", hint)
        if len(registry) + 1 + len(repository) > _MAX_NAME:
            raise _invalid_reference(text, f"longer than {_MAX_NAME} characters")
        if tag is None:
            tag = "" if digest else _DEFAULT_TAG
        return cls(registry, repository, tag, Digest(digest) if digest else None)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"

    @property
    def familiar_name(self) -> str:
        """The reference as people write it, without the default registry and namespace."""
        text = str(self)
        if self.registry != DEFAULT_REGISTRY:
            return text
        short = text.removeprefix(f"{DEFAULT_REGISTRY}/")
        inner = short.removeprefix(f"{_DEFAULT_NAMESPACE}/")
        if "/" not in inner:
            return inner
        return text if _is_host(short.partition("/")[0]) else short

    @property
    def target(self) -> str:
        """What to request from the repository: the digest if there is one, else the tag."""
        return self.digest or self.tag

    def with_digest(self, digest: Digest) -> Reference:
        """Return this reference pinned to ``digest``."""
        return replace(self, digest=digest)


def parse_registry(text: str) -> str:
    """Return ``HOST`` or ``HOST:PORT``. Raises :class:`UsageError` if it is invalid."""
    if not _REGISTRY.fullmatch(text):
        raise UsageError(
            f"invalid registry {text!r}", hint="use the form registry.example.com or localhost:5000"
        )
    return text


def _split_tag(text: str) -> tuple[str, str | None]:
    # A colon before a slash belongs to a port.
    cut = text.rfind(":")
    if cut < 0 or "/" in text[cut:] or text[cut:].endswith("]"):
        return text, None
    return text[:cut], text[cut + 1 :]


def _split_registry(name: str) -> tuple[str, str]:
    first, slash, rest = name.partition("/")
    if not slash or not _is_host(first):
        first, rest = DEFAULT_REGISTRY, name
    # Docker's former name for the same registry.
    if first == "index.docker.io":
        first = DEFAULT_REGISTRY
    if first == DEFAULT_REGISTRY and "/" not in rest:
        rest = f"{_DEFAULT_NAMESPACE}/{rest}"
    return first, rest


def _is_host(first: str) -> bool:
    """Return whether the first component of a name is a registry and not a namespace."""
    return "." in first or ":" in first or first == "localhost" or first != first.lower()


def _invalid_reference(text: str, reason: str, hint: str = "") -> UsageError:
    return UsageError(
        f"invalid image reference {text!r}: {reason}",
        hint=hint or "use the form registry.example.com/team/name:tag",
    )
