"""Versions of Julia packages: the registry's format, and what fits together."""

from __future__ import annotations

import pytest

from danlu.errors import OutsideError, ResolveError
from danlu.lang.julia_artifacts import select_artifacts
from danlu.lang.julia_depot import make_version_slug
from danlu.lang.julia_registry import (
    JuliaRegistry,
    JuliaRequirement,
    PackageUniverse,
    is_standard,
    parse_range,
    parse_version,
    select_packages,
)
from tests.fakes.julia import make_uuid

JULIA = "1.10.10"


class RegistryTexts:
    """A registry in memory: the requirements of each version of a package, by name."""

    def __init__(self) -> None:
        self.files = {"Registry.toml": "[packages]\n"}

    def add(
        self,
        name: str,
        version: str,
        needs: dict[str, str] | None = None,
        *,
        weak: dict[str, str] | None = None,
        fields: str = "",
    ) -> None:
        uuid = make_uuid(name)
        if f"{name}/Versions.toml" not in self.files:
            self.files["Registry.toml"] += f'{uuid} = {{ name = "{name}", path = "{name}" }}\n'
        self._append_entry(
            f"{name}/Versions.toml", version, f'git-tree-sha1 = "{"0a" * 20}"', fields
        )
        for prefix, listing in (("", needs or {}), ("Weak", weak or {})):
            uuids = [f'{item} = "{make_uuid(item)}"' for item in listing if item != "julia"]
            ranges = [f"{item} = {spec}" for item, spec in listing.items()]
            self._append_entry(f"{name}/{prefix}Deps.toml", version.partition("+")[0], *uuids)
            self._append_entry(f"{name}/{prefix}Compat.toml", version.partition("+")[0], *ranges)

    def _append_entry(self, path: str, version: str, *lines: str) -> None:
        text = "\n".join([f'["{version}"]', *lines, ""])
        self.files[path] = self.files.get(path, "") + (text if any(lines) else "")

    def select(self, *names: str, julia: str = JULIA, **kept: str) -> dict[str, str]:
        """Return the versions that are chosen, by name."""
        release = parse_version(julia)
        assert release is not None
        files = {path: text.encode() for path, text in self.files.items()}
        universe = PackageUniverse([JuliaRegistry(files)], release)
        expected = [JuliaRequirement(name, make_uuid(name)) for name in names]
        old = {make_uuid(name): version for name, version in kept.items()}
        packages = select_packages(universe, expected, old)
        return {item.package.name: item.version.text for item in packages.values()}


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("1", ["1.0.0", "1.99.0", "1.2.3-rc1"], ["0.9.9", "2.0.0"]),
        ("1.2-1.5", ["1.2.0", "1.5.99"], ["1.1.9", "1.6.0"]),
        ("0.14 - 0", ["0.14.0", "0.99.0"], ["0.13.9", "1.0.0"]),
        ("0.3.2", ["0.3.2", "0.3.2+1"], ["0.3.3", "0.3.1"]),
        ("*", ["0.0.1", "7.0.0"], []),
        ("1.3-*", ["1.3.0", "9.0.0"], ["1.2.9"]),
        ("0-1.2", ["0.0.1", "1.2.7"], ["1.3.0"]),
    ],
)
def test_range_of_a_registry_includes_what_julia_includes(
    text: str, inside: list[str], outside: list[str]
) -> None:
    versions = {name: parse_version(name) for name in [*inside, *outside]}
    included = [
        name for name, item in versions.items() if item and parse_range(text).includes(item)
    ]
    assert included == inside


@pytest.mark.parametrize("text", ["", "1-2-3", "1.2.3.4", "^1", "x"])
def test_invalid_range_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="invalid version range"):
        parse_range(text)


def test_versions_are_ordered_as_julia_orders_them() -> None:
    # What sort() of Julia 1.5.3 returns: numbers are compared as such only between dots.
    ordered = ["1.0.0-alpha.2", "1.0.0-alpha.10", "1.0.0-rc10", "1.0.0-rc2", "1.0.0", "1.0.0+2"]
    ordered += ["1.0.0+10", "1.10.0"]
    parsed = [parse_version(text) for text in ordered]
    assert sorted(item for item in parsed if item) == parsed


def test_slug_is_the_directory_that_julia_looks_for() -> None:
    # Example 0.5.3: what Base.version_slug of Julia 1.5.3 prints.
    uuid, tree = "7876af07-990d-54b4-ab0e-23690620f79a", "46e44e869b4d90b96bd8ed1fdcf32244fddfb6cc"
    assert make_version_slug(uuid, tree) == "aqsx3"


def test_newest_versions_that_fit_are_chosen() -> None:
    registry = RegistryTexts()
    for version in ("1.0.0", "1.5.0", "2.0.0"):
        registry.add("Runes", version, {"julia": '"1"'})
    registry.add("Grimoire", "0.2.0", {"Runes": '["0.9", "1.2-1"]', "Dates": '"1"'})
    assert registry.select("Grimoire") == {"Grimoire": "0.2.0", "Runes": "1.5.0"}
    assert registry.select("Grimoire", "Runes", Runes="1.0.0")["Runes"] == "1.5.0"
    assert registry.select("Runes", Runes="1.0.0") == {"Runes": "1.0.0"}


def test_an_older_version_is_chosen_if_the_newest_contradicts_another_package() -> None:
    registry = RegistryTexts()
    for version in ("1.0.0", "2.0.0"):
        registry.add("Runes", version)
    registry.add("Grimoire", "1.0.0", {"Runes": '"1"'})
    registry.add("Grimoire", "2.0.0", {"Runes": '"2"'})
    registry.add("Alembic", "3.0.0", {"Runes": '"1"'})
    result = registry.select("Grimoire", "Alembic")
    assert result == {"Grimoire": "1.0.0", "Alembic": "3.0.0", "Runes": "1.0.0"}


def test_yanked_versions_and_those_for_another_julia_are_not_chosen() -> None:
    registry = RegistryTexts()
    registry.add("Runes", "1.0.0", {"julia": '"1"'})
    registry.add("Runes", "1.1.0", {"julia": '"1.11-1"'})
    registry.add("Runes", "1.2.0", {"julia": '"1"'}, fields="yanked = true")
    assert registry.select("Runes") == {"Runes": "1.0.0"}
    assert registry.select("Runes", julia="1.11.2") == {"Runes": "1.1.0"}


def test_weak_dependency_is_not_installed_but_restricts_what_is() -> None:
    registry = RegistryTexts()
    for version in ("1.0.0", "2.0.0"):
        registry.add("Runes", version)
    registry.add("Grimoire", "1.0.0", weak={"Runes": '"1"'})
    assert registry.select("Grimoire") == {"Grimoire": "1.0.0"}
    assert registry.select("Grimoire", "Runes")["Runes"] == "1.0.0"


def test_packages_that_are_part_of_julia_are_not_installed() -> None:
    registry = RegistryTexts()
    registry.add("Zlib_jll", "1.3.1+2")
    registry.add("Runes", "1.0.0", {"Zlib_jll": '"1"', "Dates": '"1"'})
    assert registry.select("Runes") == {"Runes": "1.0.0"}
    assert registry.select("Runes", julia="1.5.3") == {"Runes": "1.0.0", "Zlib_jll": "1.3.1+2"}
    release = parse_version("1.9.0")
    assert release is not None
    assert is_standard("TOML", release)
    assert not is_standard("SuiteSparse", release)


@pytest.mark.parametrize(
    ("version", "changed", "part"),
    [
        ("1.6.7", "Downloads", True),
        ("1.5.4", "Downloads", False),
        ("1.8.5", "SuiteSparse", True),
        ("1.9.0", "SuiteSparse", False),
        ("1.11.7", "MbedTLS_jll", True),
        ("1.12.0", "MbedTLS_jll", False),
        ("1.12.0", "OpenSSL_jll", True),
        ("1.11.7", "OpenSSL_jll", False),
        ("1.11.0", "StyledStrings", True),
        ("1.10.10", "StyledStrings", False),
        ("1.12.0", "JuliaSyntaxHighlighting", True),
        ("1.11.7", "JuliaSyntaxHighlighting", False),
        ("1.7.0", "libblastrampoline_jll", True),
        ("1.6.7", "libblastrampoline_jll", False),
        ("1.9.0", "LLD_jll", True),
        ("1.8.5", "LLD_jll", False),
    ],
)
def test_each_release_of_julia_has_its_own_packages(version: str, changed: str, part: bool) -> None:
    release = parse_version(version)
    assert release is not None
    assert is_standard(changed, release) is part
    for name in ("Dates", "InteractiveUtils", "LinearAlgebra", "Pkg", "REPL", "Random", "Test"):
        assert is_standard(name, release)
    assert not is_standard("DataFrames", release)


def test_contradiction_names_both_sides() -> None:
    registry = RegistryTexts()
    registry.add("Runes", "1.0.0")
    registry.add("Runes", "2.0.0")
    registry.add("Grimoire", "1.0.0", {"Runes": '"1"'})
    registry.add("Alembic", "3.0.0", {"Runes": '"2"'})
    with pytest.raises(ResolveError, match="fit together: Runes") as caught:
        registry.select("Grimoire", "Alembic")
    assert set(caught.value.details) == {
        "Grimoire 1.0.0 needs Runes 1",
        "Alembic 3.0.0 needs Runes 2",
    }


def test_package_without_a_version_for_this_julia_is_named() -> None:
    registry = RegistryTexts()
    registry.add("Runes", "1.0.0", {"julia": '"1.11-1"'})
    with pytest.raises(ResolveError) as caught:
        registry.select("Runes")
    assert "no such Runes supports Julia 1.10.10" in caught.value.details


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("Registry.toml", "[packages", "invalid Registry.toml"),
        ("Runes/Versions.toml", "x = 1", "invalid Runes/Versions.toml"),
        ("Runes/Deps.toml", '["one"]\nA = "x"\n', "Julia registry is invalid"),
        ("Runes/Compat.toml", '["1"]\njulia = "?"\n', "Julia registry is invalid"),
    ],
)
def test_damaged_registry_is_an_outside_error(path: str, text: str, message: str) -> None:
    registry = RegistryTexts()
    registry.add("Runes", "1.0.0")
    registry.files[path] = text
    with pytest.raises(OutsideError, match=message):
        registry.select("Runes")


HOST = {"arch": "x86_64", "os": "linux", "libc": "glibc", "julia_version": "1.10.10"}


def describe_artifact(tree: str, **tags: str) -> str:
    lines = [f'{key} = "{tag}"' for key, tag in tags.items()]
    return "\n".join(["[[lib]]", f'git-tree-sha1 = "{tree * 40}"', *lines, ""])


def test_artifact_for_the_platform_is_chosen() -> None:
    text = (
        describe_artifact("1", arch="aarch64", os="linux", libc="glibc")
        + describe_artifact("2", arch="x86_64", os="macos")
        + describe_artifact("3", arch="x86_64", os="linux", libc="musl")
        + describe_artifact("4", arch="x86_64", os="linux", libc="glibc", julia_version="1.9.0")
        + describe_artifact("5", arch="x86_64", os="linux", libc="glibc", julia_version="1.10.0")
        + f'[data]\ngit-tree-sha1 = "{"6" * 40}"\n'
        + f'[later]\ngit-tree-sha1 = "{"7" * 40}"\nlazy = true\n'
    )
    assert select_artifacts(text, HOST, name="x") == {"lib": "5" * 40, "data": "6" * 40}


@pytest.mark.parametrize("text", ["[", '[lib]\ngit-tree-sha1 = "../.."\n', "[lib]\n"])
def test_invalid_artifacts_are_an_outside_error(text: str) -> None:
    with pytest.raises(OutsideError, match=r"Runes 1\.0 has an invalid Artifacts\.toml"):
        select_artifacts(text, HOST, name="Runes 1.0")
