"""R packages in the lock: from the distribution if its version fits, else from a CRAN mirror."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from danlu.errors import OutsideError, ResolveError, Span
from danlu.lang.functions.r import R_PACKAGES, LockedRPackage, RPackages, read_index
from tests.resolve.section_locker import SectionLocker

SPAN = Span("build.envd", 3)


class RLocker(SectionLocker):
    """Locks R packages with a directory as CRAN mirror; the distribution has R 4.2.2."""

    def __init__(self, place: Path) -> None:
        self.mirror = place / "cran/src/contrib"
        self.mirror.mkdir(parents=True)
        super().__init__(place, {"cran": str(place / "cran")})
        self._index = ""

    def publish(self, name: str, version: str, **fields: str) -> None:
        lines = [f"Package: {name}", f"Version: {version}"]
        lines += [f"{field}: {value}" for field, value in fields.items()]
        self._index += "\n".join(lines) + "\n\n"
        (self.mirror / "PACKAGES.gz").write_bytes(gzip.compress(self._index.encode()))
        (self.mirror / f"{name}_{version}.tar.gz").write_bytes(f"{name} {version}".encode())

    def lock_packages(
        self, *names: str, pins: tuple[LockedRPackage, ...] = ()
    ) -> dict[str, LockedRPackage]:
        result = self.lock(R_PACKAGES, RPackages(names, span=SPAN), pins=pins)
        return {pin.name: pin for pin in result}


@pytest.fixture
def locker(tmp_path: Path) -> RLocker:
    return RLocker(tmp_path)


def test_dependencies_are_locked_but_not_those_that_are_part_of_r(locker: RLocker) -> None:
    locker.publish("top", "1.0", Depends="R (>= 3.5), methods", Imports="middle,\n  stats")
    base = "base, compiler, datasets, graphics, grDevices, grid, parallel, splines, stats4, tools"
    locker.publish("middle", "2.0-1", LinkingTo=f"low (>= 0.5), {base}, tcltk, utils")
    locker.publish("low", "0.5", NeedsCompilation="yes")
    pins = locker.lock_packages("top")
    assert {pin.name: (pin.version, pin.is_wanted, pin.requires) for pin in pins.values()} == {
        "low": ("0.5", False, ()),
        "middle": ("2.0-1", False, ("low",)),
        "top": ("1.0", True, ("middle",)),
    }
    assert pins["low"].packages == ("r-base-core", "r-base-dev")
    assert pins["top"].packages == ("r-base-core",)


def test_package_of_the_distribution_is_preferred_if_its_version_fits(locker: RLocker) -> None:
    locker.debs["r-cran-low"] = "0.5-1"
    locker.publish("old", "1.0", Imports="low (>= 0.4)")
    locker.publish("new", "1.0", Imports="low (>= 0.6)")
    locker.publish("low", "0.7")
    assert locker.lock_packages("old")["low"].source == "apt"
    assert locker.lock_packages("old")["low"].packages == ("r-base-core", "r-cran-low")
    low = locker.lock_packages("old", "new")["low"]
    assert (low.source, low.version) == ("cran", "0.7")


def test_what_only_a_replaced_version_needed_is_not_locked(locker: RLocker) -> None:
    locker.publish("top", "1.0", Imports="low")
    locker.publish("low", "1.0", Imports="lower")
    locker.publish("lower", "1.0")
    pins = locker.lock_packages("top")
    assert set(pins) == {"top", "low", "lower"}
    locker.publish("other", "1.0", Imports="low (>= 2.0)")
    locker.publish("low", "2.0")
    assert set(locker.lock_packages("top", "other", pins=tuple(pins.values()))) == {
        *("top", "other", "low"),
    }


def test_locked_versions_are_kept(locker: RLocker) -> None:
    locker.publish("top", "1.0", Imports="low")
    locker.publish("low", "1.0")
    pins = tuple(locker.lock_packages("top").values())
    locker.publish("low", "2.0")
    locker.publish("top", "2.0", Imports="low")
    kept = locker.lock_packages("top", pins=pins)
    assert {pin.name: pin.version for pin in kept.values()} == {"top": "1.0", "low": "1.0"}
    assert R_PACKAGES.is_stale(locker.environment(RPackages(("top", "low"))), pins)


@pytest.mark.parametrize(
    ("operator", "accepted"),
    [
        ("<", {"1.9"}),
        ("<=", {"1.9", "1.10"}),
        ("==", {"1.10"}),
        (">=", {"1.10", "1.10-1"}),
        (">", {"1.10-1"}),
        ("!=", {"1.9", "1.10-1"}),
    ],
)
def test_requirement_is_compared_by_numbers(
    locker: RLocker, operator: str, accepted: set[str]
) -> None:
    for version in ("1.9", "1.10", "1.10-1"):
        locker.debs["r-cran-low"] = f"{version}-1"
        locker.publish("top", "1.0", Imports=f"low ({operator} 1.10)")
        if version in accepted:
            assert locker.lock_packages("top")["low"].source == "apt"
        else:
            with pytest.raises(ResolveError, match="low not found on CRAN"):
                locker.lock_packages("top")


def test_version_that_the_mirror_does_not_have_is_refused_with_who_needs_it(
    locker: RLocker,
) -> None:
    locker.publish("top", "1.0", Imports="low (>= 2.0)")
    locker.publish("low", "1.0")
    with pytest.raises(ResolveError, match=r"top needs low >= 2\.0, but .* has low 1\.0") as caught:
        locker.lock_packages("top")
    assert caught.value.span == SPAN


def test_package_for_a_newer_r_is_refused(locker: RLocker) -> None:
    locker.publish("top", "1.0", Imports="low")
    locker.publish("low", "1.0", Depends="R (>= 4.3.0)")
    with pytest.raises(ResolveError, match=r"low 1\.0 needs R >= 4\.3\.0, .*R 4\.2\.2.*top needs"):
        locker.lock_packages("top")


def test_newest_version_for_the_r_of_the_distribution_is_taken(locker: RLocker) -> None:
    for version, depends in (("1.9", "3.5"), ("1.10", "4.2"), ("2.0", "4.3")):
        locker.publish("top", version, Depends=f"R (>= {depends})")
    assert locker.lock_packages("top")["top"].version == "1.10"


def test_file_that_the_index_lists_and_the_mirror_lacks_is_named(locker: RLocker) -> None:
    locker.publish("top", "1.0")
    (locker.mirror / "top_1.0.tar.gz").unlink()
    with pytest.raises(OutsideError, match=r"lists top 1\.0, but does not have the file"):
        locker.lock_packages("top")


def test_plain_index_is_read_if_there_is_no_compressed_one(locker: RLocker) -> None:
    locker.publish("top", "1.0")
    index = locker.mirror / "PACKAGES.gz"
    (locker.mirror / "PACKAGES").write_bytes(gzip.decompress(index.read_bytes()))
    index.unlink()
    assert locker.lock_packages("top")["top"].version == "1.0"
    (locker.mirror / "PACKAGES").unlink()
    with pytest.raises(OutsideError, match="no package index"):
        locker.lock_packages("top")


def test_names_that_would_leave_the_mirror_are_not_read() -> None:
    text = (
        "Package: ../x\nVersion: 1.0\n\nPackage: b1\nVersion: ../1\n\nPackage: ok\nVersion: 1.0\n"
    )
    assert set(read_index(text, "")) == {"ok"}
