"""Bundles of bug reports: no secrets in them, and nothing in them is trusted."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from pathlib import Path

import msgspec
import pytest

from danlu.diagnosis.bug_report.bundle import ReportHeader, read_bundle, write_bundle
from danlu.diagnosis.bug_report.collect import CollectedReport, collect_report
from danlu.diagnosis.bug_report.reproduce import compare_machines, unpack_report
from danlu.diagnosis.doctor import DoctorCheck
from danlu.engine.settings import Settings
from danlu.errors import OutsideError, UsageError
from danlu.project.project import Project
from danlu.util.config import Configuration
from danlu.util.paths import Paths

SECRET = "hunter2hunter2"

HEADER = ReportHeader(created="2026-01-01", danlu="0.1.0", file="build.envd", target="build")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Use a separate home; the checks of the machine are tested with doctor."""
    checks = (DoctorCheck("mirror", False, f"https://me:{SECRET}@example.org does not answer"),)
    monkeypatch.setattr(
        "danlu.diagnosis.bug_report.collect.run_checks", lambda paths, context: checks
    )
    return Settings(Paths.of({"DANLU_HOME": str(tmp_path / "home")}), Configuration())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "requirements.txt").write_text(f"--index-url https://me:{SECRET}@example.org\nx\n")
    (directory / "build.envd").write_text(
        'def build():\n    base(os="debian12")\n'
        f'    runtime.environ({{"WANDB_API_KEY": "{SECRET}"}})\n'
        '    install.python_packages(requirements="requirements.txt")\n'
    )
    return directory


def collect(project: Path | None, settings: Settings, **environ: str) -> CollectedReport:
    opened = Project.open(directory=project, paths=settings.paths) if project else None
    return collect_report(opened, settings=settings, environ=environ)


def test_report_contains_no_secret(project: Path, settings: Settings) -> None:
    paths = settings.paths
    for directory in (
        paths.logs,
        paths.config,
        paths.jobs / "j" / "logs",
        paths.environments / "e",
    ):
        directory.mkdir(parents=True)
    (paths.logs / "1-build.log").write_text(f"Authorization: Bearer {SECRET}\nkept\n")
    (paths.config_file).write_text(f'[mirrors.npm]\nurls = ["https://a:{SECRET}@example.org"]\n')
    (paths.jobs / "j" / "logs" / "worker-0.log").write_text(f"loss 1\nmy value is {SECRET}\n")
    (paths.environments / "e" / "supervisor.log").write_text(f"password={SECRET}\n")
    report = collect(
        project, settings, MY_TOKEN=SECRET, HTTPS_PROXY=f"http://u:{SECRET}@p:1", PATH="/bin"
    )
    assert {
        "report.json",
        "plan.json",
        "doctor.json",
        "versions.json",
        "environment.json",
        "config.toml",
        "project/build.envd",
        "project/requirements.txt",
        "logs/danlu/1-build.log",
        "logs/jobs/j/worker-0.log",
        "logs/environments/e/supervisor.log",
    } <= report.files.keys()
    assert not [name for name, content in report.files.items() if SECRET.encode() in content]
    assert b"kept" in report.files["logs/danlu/1-build.log"]
    assert report.removed["logs/jobs/j/worker-0.log"] == {"value of a secret variable": 1}
    assert json.loads(report.files["environment.json"]) == {"HTTPS_PROXY": "http://***@p:1"}
    for name in ("plan.json", "doctor.json", "versions.json", "report.json"):
        json.loads(report.files[name])


def test_redacted_build_file_is_still_valid(
    project: Path, settings: Settings, tmp_path: Path
) -> None:
    write_bundle(tmp_path / "r.tar.gz", collect(project, settings).files)
    assert (tmp_path / "r.tar.gz").stat().st_mode & 0o777 == 0o600
    report = unpack_report(tmp_path / "r.tar.gz", tmp_path / "new", trust=False)
    assert report.project == tmp_path / "new" / "project"
    assert report.differences == ()
    assert Project.open(directory=report.project).environment().base.os == "debian12"
    assert (tmp_path / "new" / "report" / "plan.json").is_file()


def test_invalid_build_file_is_reported_with_its_error(project: Path, settings: Settings) -> None:
    (project / "build.envd").write_text("def build():\n    nonsense()\n")
    report = collect(project, settings)
    assert b"nonsense" in report.files["plan-error.txt"]
    assert b"nonsense" in report.files["project/build.envd"]


def test_bundle_never_replaces_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutsideError, match="not a regular file"):
        write_bundle(tmp_path / "pipe", {})
    assert (tmp_path / "pipe").is_fifo()


def test_report_without_a_project_describes_the_machine(settings: Settings) -> None:
    report = collect(None, settings)
    assert report.header.file == ""
    assert "doctor.json" in report.files


def test_links_out_of_a_project_and_in_logs_are_not_followed(
    project: Path, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "outside").write_text("outside content")
    (project / "requirements.txt").unlink()
    (project / "requirements.txt").symlink_to(tmp_path / "outside")
    settings.paths.logs.mkdir(parents=True)
    (settings.paths.logs / "1.log").symlink_to(tmp_path / "outside")
    report = collect(project, settings)
    assert not [name for name, content in report.files.items() if b"outside content" in content]
    assert any(name.startswith("requirements.txt") for name in report.header.missing)


def make_bundle(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def read_member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


GOOD = (read_member("report.json"), msgspec.json.encode(HEADER))


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/x", "project/../../x", "project//x", "a/./b", "x\x1b[31m", "x" * 300, "-\n", ""],
)
def test_bundle_with_a_path_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    bundle = make_bundle(tmp_path / "b.tar.gz", GOOD, (read_member(name), b"x"))
    with pytest.raises(UsageError) as caught:
        unpack_report(bundle, tmp_path / "new", trust=True)
    assert "\x1b" not in caught.value.message
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE],
)
def test_bundle_with_anything_but_files_is_refused(tmp_path: Path, kind: bytes) -> None:
    bundle = make_bundle(tmp_path / "b.tar.gz", GOOD, (read_member("project/x", kind, "/etc"), b""))
    with pytest.raises(UsageError):
        read_bundle(bundle)


def test_bundle_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    for names in (("a", "a"), ("a", "a/b"), ("a/b", "a")):
        members = [(read_member(name), b"x") for name in names]
        bundle = make_bundle(tmp_path / "b.tar.gz", GOOD, *members)
        with pytest.raises(UsageError, match="twice"):
            read_bundle(bundle)


def test_bundle_that_expands_without_end_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "bomb.tar.gz", "wb", compresslevel=9) as file:
        for _ in range(80):
            file.write(bytes(1 << 20))
    with pytest.raises(UsageError, match="expands"):
        read_bundle(tmp_path / "bomb.tar.gz")
    bundle = make_bundle(tmp_path / "b.tar.gz", GOOD, (read_member("x"), bytes(5 << 20)))
    with pytest.raises(UsageError, match="too large"):
        read_bundle(bundle)


@pytest.mark.parametrize(
    "data", [b"", b"x", gzip.compress(b"x" * 600, mtime=0), gzip.compress(b"", mtime=0)[:12]]
)
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "b").write_bytes(data)
    with pytest.raises(UsageError, match="not a bundle"):
        read_bundle(tmp_path / "b")


@pytest.mark.parametrize("file", ["build.py", "build.sh", "x.PY"])
def test_program_of_a_report_needs_trust(tmp_path: Path, file: str) -> None:
    header = msgspec.json.encode(msgspec.structs.replace(HEADER, file=file))
    members = (
        (read_member("report.json"), header),
        (read_member(f"project/{file}"), b"raise SystemExit"),
    )
    bundle = make_bundle(tmp_path / "b.tar.gz", *members)
    with pytest.raises(UsageError, match="would run as you"):
        unpack_report(bundle, tmp_path / "new", trust=False)
    assert not (tmp_path / "new").exists()
    assert unpack_report(bundle, tmp_path / "new", trust=True).header.file == file


def test_reports_never_replace_files(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b.tar.gz", GOOD, (read_member("project/build.envd"), b""))
    (tmp_path / "new").mkdir()
    with pytest.raises(UsageError, match="already exists"):
        unpack_report(bundle, tmp_path / "new", trust=False)


def test_differences_of_machines_name_both_versions() -> None:
    result = compare_machines(json.dumps({"danlu": "0.0.1", "unknown": "x"}).encode())
    assert next(item.reported for item in result if item.name == "danlu") == "0.0.1"
    assert all(item.name != "unknown" for item in result)
    for text in (b"[]", b"{", b"[" * 100_000, b'{"danlu": {"a": 1}}'):
        compare_machines(text)
