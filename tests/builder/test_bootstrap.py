"""A Debian base, and packages on it, contain exactly what is locked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
PROGRAM = Path(__file__).with_name("bootstrap_process.py")
Make = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def make(real_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes a base and installs packages on it, each time in a new store."""

    def work(
        *names: str,
        script: str = "true",
        offline: bool = False,
        umask: int = 0o022,
        **environment: str,
    ) -> dict[str, Any]:
        (real_home / "stores").mkdir(parents=True, exist_ok=True)
        directory = real_home / "stores" / tmp_path_factory.mktemp("store").name
        result = subprocess.run(
            [sys.executable, PROGRAM, json.dumps([str(directory), names, script, offline])],
            env={**os.environ, "DANLU_HOME": str(real_home), **environment},
            capture_output=True,
            text=True,
            check=False,
            umask=umask,
        )
        assert result.returncode == 0, result.stderr
        return dict(json.loads(result.stdout))

    return work


SCRIPT = """\
dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n'; dpkg --audit
echo = ; cat /etc/hostname /etc/apt/sources.list
echo = ; ls -ld /tmp /root /run/lock | cut -c1-10
echo = ; apt-mark showmanual
echo = ; apt-mark showauto
echo = ; apt-get check && apt-get --dry-run autoremove
echo = ; id sshd; id messagebus; stat -c %a /usr/bin/sudo
"""
#: With users, services, triggers, alternatives, set-id files and questions of debconf.
PACKAGES = ("git", "openssh-server", "dbus", "sudo", "tzdata", "fontconfig")


@pytest.fixture(scope="module")
def bootstrap_result(make: Make) -> dict[str, Any]:
    return make(*PACKAGES, script=SCRIPT)


def split_output(made: dict[str, Any]) -> list[list[str]]:
    """Return what each part of the script printed."""
    return [part.strip("\n").split("\n") for part in "\n".join(made["printed"]).split("\n=\n")]


def test_exactly_the_locked_packages_are_installed_completely(
    bootstrap_result: dict[str, Any],
) -> None:
    lines = dict(line.split(" ", 1) for line in split_output(bootstrap_result)[0])
    assert lines == {
        name: f"{version} ii " for name, version in bootstrap_result["packages"].items()
    }


def test_progress_counts_every_package_that_is_installed(bootstrap_result: dict[str, Any]) -> None:
    counts = bootstrap_result["counts"]
    base = next(int(key.split()[0]) for key in counts if key.endswith("extracted"))
    added = len(bootstrap_result["packages"]) - base
    expected = {f"{base} extracted"} | {
        f"{number} {done}" for number in (base, added) for done in ("unpacked", "configured")
    }
    assert set(counts) == expected
    for key, numbers in counts.items():
        total = int(key.split()[0])
        assert numbers == sorted(numbers)
        assert set(numbers) == set(range(1, total + 1))


def test_the_base_is_neutral(bootstrap_result: dict[str, Any]) -> None:
    hostname, *sources = split_output(bootstrap_result)[1]
    assert hostname == "localhost"
    assert sources
    assert all(line.startswith("#") for line in sources)
    # apache2 and other services cannot start without /run/lock.
    assert split_output(bootstrap_result)[2] == ["drwx------", "drwxrwxrwt", "drwxrwxrwt"]


def test_dependencies_are_marked_as_automatic(bootstrap_result: dict[str, Any]) -> None:
    manual, auto, check = split_output(bootstrap_result)[3:6]
    assert {"git", "sudo", "dbus"} <= set(manual)
    assert "libcurl3-gnutls" in auto
    assert "git" not in auto
    assert any("0 to remove" in line for line in check)
    assert bootstrap_result["code"] == 0


def test_users_and_set_id_files_are_right(bootstrap_result: dict[str, Any]) -> None:
    sshd, messagebus, mode = split_output(bootstrap_result)[6]
    assert "(sshd)" in sshd
    assert "(messagebus)" in messagebus
    assert mode == "4755"


def test_no_service_is_started_and_no_key_created(bootstrap_result: dict[str, Any]) -> None:
    assert not [name for name in bootstrap_result["files"][1] if "ssh_host_" in name]
    assert not [line for line in bootstrap_result["log"] if "Starting" in line]


def test_a_layer_contains_no_volatile_and_no_host_files(
    bootstrap_result: dict[str, Any],
) -> None:
    everything = {name for files in bootstrap_result["files"] for name in files}
    gone = {
        "danlu-packages",
        "etc/machine-id",
        "etc/passwd-",
        "usr/sbin/policy-rc.d",
        "var/cache/ldconfig/aux-cache",
        "var/lib/dpkg/lock",
        "var/lib/dpkg/status-old",
        "var/log/dpkg.log",
    }
    assert everything & gone == set()
    assert not [name for name in everything if name.endswith((".bin", ".deb", "_Packages"))]
    base = bootstrap_result["files"][0]
    assert {name for name in base if name.startswith("run/")} == {"run/lock"}


@pytest.mark.slow
def test_second_bootstrap_is_identical_and_needs_no_network(
    make: Make, bootstrap_result: dict[str, Any]
) -> None:
    again = make(
        *PACKAGES,
        offline=True,
        umask=0o077,
        http_proxy="http://127.0.0.1:9",
        TZ="Asia/Tokyo",
        LANG="de_DE.UTF-8",
        SOURCE_DATE_EPOCH="1",
    )
    assert again["layers"] == bootstrap_result["layers"]
    assert len(again["layers"]) == 2
