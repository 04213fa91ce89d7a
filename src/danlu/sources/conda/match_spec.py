"""Read conda's match specifications (``numpy=1.26``) with rattler."""

from __future__ import annotations

import re

# rattler is large: callers import this module only when they need it.
import rattler

from danlu.environment.conda import strip_channel
from danlu.errors import ResolveError

_QUALIFIED = re.compile(r"^([^\[\s]+)::(.+)$", re.DOTALL)
#: A clause of a version as rattler writes it, if it means the same in PEP 440.
_COMMON_CLAUSE = re.compile(
    r"(?:==|!=|>=|<=|>|<)\d+(?:\.\d+)*|~=\d+(?:\.\d+)+|(?:!=)?\d+(?:\.\d+)*\.\*"
)
#: conda reads this as ``>1.26``, rattler as ``>=1.26``.
_AMBIGUOUS = re.compile(r">\s*[\w.!+]+\.\*")


def split_spec(text: str) -> tuple[str, str]:
    """Return the channel of ``channel::package`` and the package; the channel may be empty."""
    match = _QUALIFIED.match(text)
    return (match[1], match[2]) if match else ("", text)


def parse_match_spec(text: str, *, channel: str = "") -> rattler.MatchSpec:
    """Parse a specification without its channel, and limit it to the address ``channel`` if given.

    Raises :class:`ResolveError` if it is invalid, and if rattler reads it differently from conda.
    """
    problem = ""
    try:
        spec = rattler.MatchSpec(f"{channel}::{text}" if channel else text, strict=False)
    except Exception as error:
        problem = find_reason(error)
        cause: Exception | None = error
    else:
        cause = None
        if _AMBIGUOUS.search(text):
            problem = "> cannot be combined with .*"
        elif spec.build is not None and re.match(r"[<>=!~]", str(spec.build)):
            problem = "separate the parts of a version with a comma"
    if problem:
        raise ResolveError(
            f"invalid conda package '{strip_channel(text)}': {problem}",
            hint='write it as in `conda install`: numpy, numpy=1.26, "numpy>=1.26,<2"',
        ) from cause
    return spec


def find_reason(error: Exception) -> str:
    """Return the innermost cause of an error of rattler, in one line without credentials."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by:").strip() for line in lines]
    return strip_channel(causes[-1] if causes else type(error).__name__)


def to_pep440(text: str) -> tuple[str, str | None]:
    """Return the name of a specification, in lower case, and its versions as in PEP 440.

    The versions are empty for any, and None if PEP 440 cannot express them, or if more than
    versions is specified. Raises :class:`ResolveError` for an invalid specification.
    """
    spec = parse_match_spec(split_spec(text)[1])
    name, version = str(spec.name.normalized), str(spec.version or "*")
    clauses = [] if version == "*" else version.split(",")
    if str(spec) not in (name, f"{name} {version}") or not all(
        map(_COMMON_CLAUSE.fullmatch, clauses)
    ):
        return name, None
    return name, ",".join(clause if clause[0] in "=!~<>" else f"=={clause}" for clause in clauses)
