from __future__ import annotations

import os
from pathlib import Path

import pytest

from danlu.errors import MachineError
from danlu.sandbox import doctor, userns
from danlu.sandbox.doctor import CheckResult
from danlu.util.paths import Paths

RUNC = "runc version 1.1.5\nspec: 1.0.2-dev\ngo: go1.19.8"
CRUN = "crun version 1.8.1\nspec: 1.0.0\n+SYSTEMD +SELINUX +APPARMOR +CAP {}SECCOMP +EBPF +YAJL"


def run_checks(home: Path, *, features: str, version: str, settings: str = "") -> CheckResult:
    """Return doctor's results for a runtime with this output; empty ``features``: unknown."""
    home.mkdir()
    program = home / "runc"
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        f"features) {f'echo {features!r}' if features else 'exit 1'} ;;\n"
        f"--version) echo '{version}' ;;\n"
        "esac\n"
    )
    program.chmod(0o755)
    paths = Paths.of({"DANLU_HOME": str(home)})
    paths.config.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text(f"runtime = '{program}'\n{settings}")
    return next(item for item in doctor.run_checks(paths) if item.name == "OCI runtime")


@pytest.mark.parametrize(
    ("features", "version", "ok"),
    [
        ('{"linux": {"seccomp": {"enabled": true}}}', "x", True),
        ('{"linux": {"seccomp": {"enabled": false}}}', RUNC + "\nlibseccomp: 2.5.4", False),
        ('{"linux": {}}', RUNC, False),
        ("", RUNC + "\nlibseccomp: 2.5.4", True),
        ("", RUNC, False),
        ("", CRUN.format("+"), True),
        ("", CRUN.format("-"), False),
    ],
)
def test_runtime_without_seccomp_is_reported(
    tmp_path: Path, features: str, version: str, ok: bool
) -> None:
    result = run_checks(tmp_path / "home", features=features, version=version)
    assert result.ok is ok
    assert ok or ("without seccomp" in result.detail and "runc" in result.fix)


def test_runtime_without_seccomp_is_fine_if_seccomp_is_off(tmp_path: Path) -> None:
    result = run_checks(
        tmp_path / "home", features="", version=RUNC, settings='seccomp = "unconfined"'
    )
    assert result.ok


def test_runtime_without_feature_report_is_reported(tmp_path: Path) -> None:
    result = run_checks(tmp_path / "home", features="", version="")
    assert not result.ok
    assert "--version failed" in result.detail


def test_configured_runtime_is_checked(tmp_path: Path) -> None:
    result = run_checks(
        tmp_path / "home", features='{"linux": {"seccomp": {"enabled": true}}}', version="x"
    )
    assert result.detail == str(tmp_path / "home/runc")


@pytest.mark.parametrize("error", [MachineError("forbidden", hint="allow it"), OSError("broken")])
def test_machine_without_namespaces_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(paths: Paths) -> None:
        raise error

    monkeypatch.setattr(userns, "enter", fail)
    paths = Paths.of({"DANLU_HOME": str(tmp_path)})
    results = {item.name: item for item in doctor.run_checks(paths)}
    for name in ("namespaces", "overlay mounts"):
        assert not results[name].ok
        assert results[name].detail == (getattr(error, "message", "") or "broken")
        assert results[name].fix == getattr(error, "hint", "")


def test_child_that_dies_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(userns, "enter", lambda paths: os._exit(1))
    with pytest.raises(MachineError, match="ended early"):
        doctor.probe_namespaces(Paths.of({"DANLU_HOME": str(tmp_path)}))
