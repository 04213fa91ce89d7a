"""``include``: the functions of another git repository."""

from __future__ import annotations

import msgspec

from danlu.environment.lock_section import LockSection, SectionResolver
from danlu.environment.types import Environment, IncludeRef
from danlu.lang.arg_types import TEXT
from danlu.lang.build_function import BoundCall, BuildFunction, EnvironmentBuilder, Parameter
from danlu.util.urls import strip_credentials


class LockedInclude(msgspec.Struct, frozen=True):
    """A repository: the user's URL and ref, and the commit they were resolved to."""

    url: str
    ref: str
    commit: str


class Includes(LockSection[LockedInclude]):
    """The included repositories. Evaluating the build file already resolved them."""

    name = "includes"
    singular = "include"
    plural = "includes"

    def is_stale(self, environment: Environment, pins: tuple[LockedInclude, ...]) -> bool:
        return set(_list_pins(environment)) != set(pins)

    async def resolve(
        self, environment: Environment, pins: tuple[LockedInclude, ...], resolver: SectionResolver
    ) -> tuple[LockedInclude, ...]:
        return tuple(_list_pins(environment))

    def describe(self, pin: LockedInclude) -> tuple[str, str]:
        return pin.url, pin.commit[:12]

    def find_commit(self, pins: tuple[LockedInclude, ...], url: str, ref: str) -> str:
        """Return the locked commit of a repository, empty before it is locked."""
        wanted = (strip_credentials(url), ref)
        return next((pin.commit for pin in pins if (pin.url, pin.ref) == wanted), "")


def _list_pins(environment: Environment) -> list[LockedInclude]:
    used = {
        (strip_credentials(include.url), include.ref, include.commit)
        for include in environment.includes
    }
    return [LockedInclude(url, ref, commit) for url, ref, commit in sorted(used)]


INCLUDES = Includes(LockedInclude)


def _declare_include(env: EnvironmentBuilder, call: BoundCall) -> None:
    env.add_include(IncludeRef(call["url"], call["ref"], call.commit, span=call.span))


FUNCTIONS = (
    BuildFunction(
        "include",
        "Load the functions of another git repository, from all its `*.envd` files. The returned "
        "value has them as attributes. The lockfile pins the commit. Available in `build.envd` "
        "files only: a `build.py` imports Python files.",
        (
            Parameter("url", TEXT, "the repository's address", aliases=("git",)),
            Parameter("ref", TEXT, "a branch, tag or commit; empty for the default branch", ""),
        ),
        declare=_declare_include,
        starlark_only=True,
        lock_section=INCLUDES,
        returns="Any",
        example='lib = include("https://github.com/tensorchord/envdlib", ref="main")',
    ),
)
