"""Commands on the command line: what they call, their output and exit codes."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from danlu.cli import ssh
from danlu.cli.image import list_rows
from danlu.cli.options import ByteSize
from danlu.cli.session import Session
from danlu.environments.command_options import CommandOptions
from danlu.oci.image import make_image
from danlu.oci.tar import NormalizeOptions, write_layer
from danlu.project.build import write_metadata
from danlu.project.build_request import BuildOptions, BuildReport, LayerReport, StepReport
from danlu.project.lock import STDOUT, LockOptions, LockReport
from danlu.store import Store

from .conftest import Cli

FILE = 'def build():\n    base(os="debian12")\n    install.python_packages(["numpy"])\n'
DIGEST = "sha256:" + "ab" * 32

#: What this process puts into a store has its own owner, and root's only where it is root.
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="puts layers into a store as root")


@pytest.fixture(autouse=True)
def build_file(home: Path) -> None:
    Path("build.envd").write_text(FILE)


def report(**changed: Any) -> BuildReport:
    values: dict[str, Any] = {
        "digest": "",
        "config": DIGEST,
        "size": 2_000_000,
        "layers": (LayerReport("", DIGEST, 1_000_000, "base"),) * 2,
        "lock": DIGEST,
        "vertices": (
            StepReport("base", True, 0.0, "build.envd:2:5", DIGEST, 1_000_000),
            StepReport("numpy", False, 1.5, "build.envd:3:5", DIGEST, 1_000_000),
        ),
        "seconds": 1.26,
        "builder": "embedded",
        "names": ("demo:latest",),
    }
    return BuildReport(**{**values, **changed})


def test_metadata_can_be_written_to_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_metadata(report(), pipe)
        assert json.loads(os.read(reader, 1 << 16))["builder"] == "embedded"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


Seen = dict[str, Any]


def replace_with(seen: Seen, answer: Any) -> Callable[..., Any]:
    def call(project: Any, *others: Any, **named: Any) -> Any:
        seen.update(named, project=project, others=others)
        return answer

    return call


@pytest.fixture
def recorded_calls(monkeypatch: pytest.MonkeyPatch) -> Seen:
    results: Seen = {}
    monkeypatch.setattr("danlu.cli.build.build_project", replace_with(results, report()))
    monkeypatch.setattr("danlu.cli.run.run_command", replace_with(results, 7))
    locked = LockReport(True, ("locked numpy 2.4.0",), Path("danlu.lock"))
    monkeypatch.setattr("danlu.cli.lock.lock", replace_with(results, locked))
    return results


def test_build_prints_a_summary_line(cli: Cli, recorded_calls: Seen) -> None:
    result = cli("build", "-t", "demo")
    assert (result.code, result.out) == (0, "")
    assert result.err == (
        "built abababababab demo:latest in 1.3 s: 1 built, 1 cached; 2 layers, 2.0 MB, 1.0 MB new\n"
    )


def test_unchanged_build_prints_up_to_date(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    same = report(unchanged=True, vertices=(), seconds=0.04)
    monkeypatch.setattr("danlu.cli.build.build_project", replace_with({}, same))
    assert cli("build").err == "up to date: abababababab demo:latest in 40 ms\n"


def test_build_prints_lock_changes_and_outputs(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    output = report(lock_changes=("locked numpy 2.4.0",), outputs=("/tmp/x.tar",))
    monkeypatch.setattr("danlu.cli.build.build_project", replace_with({}, output))
    assert cli("build").err.splitlines()[:2] == ["locked numpy 2.4.0", "wrote /tmp/x.tar"]


def test_quiet_build_prints_only_the_digest(cli: Cli, recorded_calls: Seen) -> None:
    for arguments in (["-q", "build"], ["build", "-q"]):
        result = cli(*arguments)
        assert (result.out, result.err) == (f"{DIGEST}\n", "")


def test_build_format_json_is_the_metadata_file(cli: Cli, recorded_calls: Seen) -> None:
    document = json.loads(cli("build", "--format", "json").out)
    write_metadata(report(), Path("metadata.json"))
    assert json.loads(Path("metadata.json").read_text()) == document
    assert set(document) == {"image", "lock", "vertices", "seconds", "builder"}
    assert set(document["image"]) == {"digest", "config", "size", "layers"}
    assert set(document["image"]["layers"][0]) == {"digest", "diff_id", "size", "created_by"}
    assert set(document["vertices"][0]) == {"name", "cached", "seconds", "line"}


def test_json_progress_ends_with_a_built_event(cli: Cli, recorded_calls: Seen) -> None:
    document = json.loads(cli("build", "--progress", "json").err)
    assert (document["type"], document["config"], document["cached"]) == ("built", DIGEST, 1)


def test_build_passes_every_option(cli: Cli, recorded_calls: Seen) -> None:
    Path("token").write_text("x")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("agent")
    listening.close()
    result = cli(
        *["build", "-f", "build.envd:build", "-t", "a", "-t", "localhost:5000/b:1"],
        *["-o", "type=oci,dest=x", "--push", "--builder", "embedded", "--platform", "linux/amd64"],
        *["--frozen", "--offline", "--no-cache", "--secret", "id=token,src=token"],
        *["--ssh", "default=agent", "--debug", "--metadata-file", "m.json"],
        *["--compression", "gzip"],
    )
    assert result.code == 0
    assert recorded_calls["options"] == BuildOptions(
        tags=("a:latest", "localhost:5000/b:1"),
        outputs=("type=oci,dest=x",),
        push=True,
        builder="embedded",
        platform="linux/amd64",
        frozen=True,
        offline=True,
        no_cache=True,
        secrets=(("token", Path("token").absolute()),),
        ssh=Path("agent").absolute(),
        debug=True,
        metadata_file=Path("m.json"),
        compression="gzip",
    )
    assert recorded_calls["project"].function == "build"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("default", "--ssh needs a running ssh agent"),
        ("default=token", "token is not a socket of an ssh agent"),
        ("github", "unknown ssh agent 'github'"),
    ],
)
def test_missing_ssh_agent_is_an_error_before_the_build(
    cli: Cli, recorded_calls: Seen, monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    Path("token").touch()
    result = cli("build", "--ssh", value)
    assert result.code == 2
    assert result.err.startswith(f"error: {message}")
    assert not recorded_calls


def test_invalid_tag_is_an_error_before_the_build(cli: Cli, recorded_calls: Seen) -> None:
    result = cli("build", "-t", "BAD NAME")
    assert result.code == 2
    assert not recorded_calls


def test_secret_from_a_variable_is_a_private_temporary_file(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    held: list[tuple[Path, str, int]] = []

    def build(project: Any, *, options: BuildOptions, **_: Any) -> BuildReport:
        path = options.secrets[0][1]
        held.append((path, path.read_text(), path.stat().st_mode & 0o777))
        return report()

    monkeypatch.setattr("danlu.cli.build.build_project", build)
    assert cli("build", "--secret", "id=token,env=TOKEN").code == 0
    path = held[0][0]
    assert held[0][1:] == ("s3cret", 0o600)
    assert not path.parent.exists()


@pytest.mark.parametrize(
    ("arguments", "names", "everything"),
    [
        ([], (), False),
        (["--upgrade"], (), True),
        (["--upgrade", "numpy", "--upgrade", "torch"], ("numpy", "torch"), False),
        (["--upgrade=numpy"], ("numpy",), False),
    ],
)
def test_lock_upgrades_named_packages_or_everything(
    cli: Cli,
    recorded_calls: Seen,
    arguments: list[str],
    names: tuple[str, ...],
    everything: bool,
) -> None:
    result = cli("lock", *arguments)
    assert recorded_calls["options"] == LockOptions(upgrade=names, upgrade_all=everything)
    assert result.err == "locked numpy 2.4.0\nwrote danlu.lock\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--check", "--export", "pylock.toml"), "--check cannot be combined with --export"),
        (("--format", "json", "--export", "-"), "--format json cannot be combined with --export -"),
    ],
)
def test_export_conflicts_with_check_and_json(
    cli: Cli, recorded_calls: Seen, arguments: tuple[str, ...], message: str
) -> None:
    result = cli("lock", *arguments)
    assert (result.code, result.out, recorded_calls) == (2, "", {})
    assert message in result.err


def test_export_writes_a_file_or_stdout(
    cli: Cli, recorded_calls: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = LockReport(False, (), Path("danlu.lock"), "text\n")
    monkeypatch.setattr("danlu.cli.lock.lock", replace_with(recorded_calls, locked))
    result = cli("lock", "--export", "pylock.x.toml")
    assert (result.out, result.err) == ("", "up to date: danlu.lock\nwrote pylock.x.toml\n")
    assert recorded_calls["options"].export == Path.cwd() / "pylock.x.toml"
    assert cli("lock", "--export", "-").out == "text\n"
    assert recorded_calls["options"].export == STDOUT


@pytest.mark.parametrize(
    ("file", "name", "message"),
    [
        (FILE, "requirements.txt", "invalid name for a pylock file: 'requirements.txt'"),
        ('def build():\n    base(os="debian12")\n', "pylock.toml", "has no Python"),
    ],
)
def test_invalid_export_is_an_error_before_locking(
    cli: Cli, file: str, name: str, message: str
) -> None:
    Path("build.envd").write_text(file)
    result = cli("lock", "--export", name)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert not Path("danlu.lock").exists()


def test_lock_format_json(cli: Cli, recorded_calls: Seen) -> None:
    document = json.loads(cli("lock", "--format", "json").out)
    assert document == {"changed": True, "changes": ["locked numpy 2.4.0"], "path": "danlu.lock"}


@pytest.mark.parametrize("dashes", [[], ["--"]])
def test_run_passes_options_and_exit_code_of_the_command(
    cli: Cli, recorded_calls: Seen, dashes: list[str]
) -> None:
    value = ["-v", "/a:/b:ro", "-e", "K=V", "--gpus", "all", "--user", "1000", "--frozen"]
    program = ["python", "-v", "train.py", "--help", "-q", "--", "x"]
    result = cli("run", *value, *dashes, *program)
    assert result == type(result)(7, "", "")
    options = CommandOptions(
        volumes=("/a:/b:ro",),
        environment=("K=V",),
        gpus="all",
        user="1000",
        frozen=True,
        is_program=bool(dashes),
    )
    assert recorded_calls["others"] == (tuple(program), options)


def test_run_image_mounts_the_current_directory(cli: Cli, recorded_calls: Seen) -> None:
    assert cli("run", "--image", "demo:1", "true").code == 7
    assert recorded_calls["project"] == Path.cwd()
    assert recorded_calls["others"] == (("true",), CommandOptions(image="demo:1"))
    result = cli("run", "--image", "demo:1", "-f", "build.envd", "true")
    assert (result.code, "--image cannot be combined with --file" in result.err) == (125, True)


def test_run_rejects_a_seccomp_profile_that_an_engine_would_ignore(cli: Cli) -> None:
    result = cli("run", "--on", "docker", "--security-opt", "seccomp=unconfined", "true")
    assert result.code == 125
    assert "--security-opt needs danlu's own engine" in result.err


def test_init_then_plan(cli: Cli) -> None:
    Path("build.envd").unlink()
    Path("train.py").write_text("import numpy\n")
    result = cli("init")
    assert result.code == 0
    assert "danlu run -- python train.py" in result.err
    plan = cli("plan")
    assert plan.code == 0
    assert "numpy" in plan.out


def test_plan_is_on_stdout_and_advice_on_stderr(cli: Cli) -> None:
    result = cli("plan")
    assert result.out.splitlines()[0].startswith("build.envd:build for linux/")
    assert "? base debian12" in result.out
    assert "danlu lock" in result.err
    assert "\x1b" not in result.out + result.err


def test_plan_formats_json_and_dot(cli: Cli) -> None:
    document = json.loads(cli("plan", "--format", "json", "--why").out)
    assert {"digest", "name", "branch", "kind", "inputs", "lines"} <= set(document["vertices"][0])
    assert {"state", "why"} <= set(document["vertices"][0])
    dot = cli("plan", "--format", "dot").out
    assert dot.startswith("digraph danlu {")
    assert dot.count("{") == dot.count("}")


def test_plan_of_several_platforms_is_a_list(cli: Cli) -> None:
    document = json.loads(
        cli("plan", "--platform", "linux/amd64,linux/arm64", "--format", "json").out
    )
    assert [plan["platform"] for plan in document] == ["linux/amd64", "linux/arm64"]
    output = cli("plan", "--platform", "linux/arm64,linux/amd64").out
    assert [line for line in output.splitlines() if line.startswith("build.envd:build")] == [
        "build.envd:build for linux/arm64",
        "build.envd:build for linux/amd64",
    ]
    result = cli("plan", "--platform", "linux/riscv64")
    assert (result.code, result.err.count("error:")) == (2, 1)


def test_build_file_error_shows_its_line(cli: Cli) -> None:
    Path("build.envd").write_text("def build():\n    base(os='debian12')\n    instal.python()\n")
    result = cli("plan")
    assert result.code == 2
    assert "--> build.envd:3" in result.err
    assert "   3 |     instal.python()" in result.err
    assert "^" in result.err


def test_config_prints_a_single_value_plainly(cli: Cli) -> None:
    assert cli("config", "builder").out == "embedded\n"
    assert "SETTING" in cli("config").out
    result = cli("config", "bilder")
    assert result.code == 2
    assert "builder" in result.err


def test_doctor_exits_with_4_if_a_check_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = [("OCI runtime", False, "neither runc nor crun", "apt install runc")]
    monkeypatch.setattr("danlu.sandbox.doctor.run_checks", lambda paths: lacking)
    result = cli("doctor")
    assert result.code == 4
    assert "FAIL  OCI runtime" in result.out
    assert "apt install runc" in result.out
    document = json.loads(cli("doctor", "--format", "json").out)
    assert {"name", "ok", "detail", "fix", "optional"} == set(document[0])


def test_version_lists_dependencies(cli: Cli) -> None:
    assert {"danlu", "python", "uv"} <= set(json.loads(cli("version", "--format", "json").out))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_danlu(cli: Cli, shell: str) -> None:
    assert "_DANLU_COMPLETE" in cli("completion", shell).out


@pytest.mark.parametrize(
    ("line", "expected"),
    [("danlu bu", "build"), ("danlu image pr", "prune"), ("danlu build --no", "--no-cache")],
)
def test_shell_completion_of_commands_and_values(program: Cli, line: str, expected: str) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    result = program(_DANLU_COMPLETE="bash_complete", **words)
    assert f"plain,{expected}" in result.out.splitlines()


def put_image(home: Path, text: str, *names: str) -> str:
    normalise = NormalizeOptions(mtime=1)
    with Store.open(home / "store") as store:
        with store.staging() as staged:
            root = staged / "tree"
            root.mkdir()
            (root / "file").write_text(text)
            summary = write_layer(root, None, normalise=normalise)
            layer = store.commit_layer(root, summary, created_by=text, normalise=normalise)
        image = make_image([(layer.diff_id, text)], architecture="amd64", environment=[("A", "1")])
        return store.put_image(image.config, image.diff_ids, names=names, metadata={}).digest


def test_image_ls_show_and_history(cli: Cli, home: Path) -> None:
    digest = put_image(home, "first", "demo:latest")
    listing = cli("image", "ls").out.splitlines()
    assert listing[0].split() == ["NAME", "IMAGE", "SIZE", "CREATED", "FROM"]
    assert listing[1].split()[:2] == ["demo:latest", digest[7:19]]
    assert cli("image", "ls", "-q").out == f"{digest}\n"
    assert json.loads(cli("image", "ls", "--format", "json").out)[0]["names"] == ["demo:latest"]
    output = cli("image", "show", "demo").out
    assert digest in output
    assert "A=1" in output
    assert "first" in cli("image", "history", "demo").out
    assert json.loads(cli("image", "show", "demo", "--format", "json").out)["digest"] == digest


def test_image_ls_groups_untagged_builds_of_a_build_file() -> None:
    def image(number: int, source: str, *names: str) -> dict[str, Any]:
        digest = f"sha256:{number:064x}"
        return {
            "digest": digest,
            "names": names,
            "source": source,
            "created": number,
            "size": 1,
        }

    images = [
        image(1, "build.envd:build"),
        image(2, "build.envd:build"),
        image(3, "build.envd:build", "demo:latest"),
        image(4, "build.envd:serve"),
        image(5, ""),
        image(6, ""),
    ]
    names = [row[0] for row in list_rows(images, everything=False)]
    assert names == ["demo:latest", "- (and 1 older)", "-", "-", "-"]
    assert len(list(list_rows(images, everything=True))) == 6


def test_image_ls_of_an_empty_store_prints_a_note_on_stderr(cli: Cli) -> None:
    result = cli("image", "ls")
    assert (result.code, result.out) == (0, "")
    assert "no images" in result.err
    assert json.loads(cli("image", "ls", "--format", "json").out) == []


def test_image_tag_diff_and_rm(cli: Cli, home: Path) -> None:
    put_image(home, "first", "a:1")
    put_image(home, "second", "b:1")
    assert cli("image", "tag", "a:1", "c:1").code == 0
    assert cli("image", "diff", "a:1", "c:1").code == 0
    result = cli("image", "diff", "a:1", "b:1")
    assert result.code == 1
    assert [line[0] for line in result.out.splitlines()] == ["-", "+"]
    assert cli("image", "rm", "a:1", "b:1").code == 0
    assert cli("image", "ls").out.count("c:1") == 1
    assert cli("image", "rm", "a:1").code == 2


@pytest.mark.real
@AS_ROOT
def test_image_save_and_load(program: Cli, home: Path) -> None:
    put_image(home, "first", "demo:1")
    for output_name in ("x.tar", "layout"):
        assert program("image", "save", "demo:1", "-o", output_name).code == 0
        other = {"DANLU_HOME": f"{home}-{output_name}"}
        assert program("image", "load", output_name, **other).code == 0
        assert "demo:1" in program("image", "ls", **other).out
        assert program("image", "check", **other).code == 0


@pytest.mark.real
@AS_ROOT
def test_image_prune_keeps_named_images(program: Cli, home: Path) -> None:
    named, nameless = put_image(home, "first", "demo:1"), put_image(home, "second")
    assert program("image", "prune").code == 0
    assert nameless in program("image", "ls", "-q").out
    planned = program("image", "prune", "--all", "--dry-run", "--format", "json")
    assert nameless in program("image", "ls", "-q").out
    result = program("image", "prune", "--all", "--format", "json")
    assert json.loads(result.out)["images"] == 1
    assert json.loads(planned.out) == json.loads(result.out)
    assert program("image", "ls", "-q").out == f"{named}\n"


@pytest.mark.real
@AS_ROOT
def test_image_prune_removes_downloads(program: Cli, home: Path) -> None:
    download = home / "cache/apt/debs/x.deb"
    download.parent.mkdir(parents=True)
    download.write_bytes(bytes(5000))
    assert program("image", "prune", "--keep", "1MB").code == 0
    planned = program("image", "prune", "--all", "--dry-run").err
    assert "would remove" in planned
    assert "1 download" in planned
    assert download.exists()
    assert "1 download" in program("image", "prune", "--all").err
    assert not download.exists()


@pytest.mark.real
@AS_ROOT
def test_image_check_finds_and_repairs_damage(program: Cli, home: Path) -> None:
    put_image(home, "first", "demo:1")
    with Store.open(home / "store") as store:
        layer = store.layer(store.images()[0].layers[0])
        assert layer is not None
        (layer.tree / "file").write_text("changed")
    assert program("image", "check").code == 3
    assert program("image", "check", "--repair").code == 0
    assert program("image", "check").code == 0


@pytest.mark.parametrize(
    "arguments", [["prune", "--keep", "3x"], ["prune", "--all", "--keep", "1"]]
)
def test_invalid_size_is_a_usage_error(cli: Cli, arguments: list[str]) -> None:
    assert cli("image", *arguments).code == 2


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("10", 10),
        ("20GB", 20 * 10**9),
        ("1GiB", 1 << 30),
        ("1.5M", 1_500_000),
        ("2k", 2000),
    ],
)
def test_sizes_are_parsed_with_units(text: str, count: int) -> None:
    assert ByteSize().convert(text, None, None) == count


def test_colors_respect_no_color_and_dumb_terminals(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from danlu.cli.terminal import Terminal

    class FakeTerminal:
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    def uses_color(**environ: str) -> bool:
        return Terminal(err=FakeTerminal(), out=FakeTerminal(), environ=environ).color  # type: ignore[arg-type]

    assert uses_color(TERM="xterm")
    assert not uses_color(TERM="xterm", NO_COLOR="1")
    assert uses_color(TERM="xterm", NO_COLOR="")
    assert not uses_color(TERM="dumb")
    assert not uses_color()
    assert os.environ.get("NO_COLOR") is None


def test_a_report_does_not_overwrite_a_file(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("build.envd").write_text('def build():\n    base(os="debian12")\n')
    refused = cli("report", "-o", "build.envd")
    assert refused.code == 2
    assert "build.envd exists already" in refused.err
    assert Path("build.envd").read_text().startswith("def build()")
    assert cli("report", "-o", "report.tar.gz").code == 0
    assert Path("report.tar.gz").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("vscode", "ls"), "no servers; `danlu vscode add` adds one\n"),
        (("jobs", "ls"), "no jobs; `danlu train` starts one\n"),
        (("ps",), "no environments; `danlu up` starts the project's\n"),
    ],
)
def test_an_empty_list_says_so(cli: Cli, arguments: tuple[str, ...], expected: str) -> None:
    result = cli(*arguments)
    assert (result.code, result.out, result.err) == (0, "", expected)


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "-o", "new/pylock.toml"),
        ("build", "--metadata-file", "new/pylock.toml"),
        ("lock", "--export", "new/pylock.toml"),
    ],
)
def test_an_output_file_does_not_create_directories(cli: Cli, arguments: tuple[str, ...]) -> None:
    Path("build.envd").write_text('def build():\n    base(os="debian12")\n')
    refused = cli(*arguments)
    assert refused.code == 2
    assert "new is not a directory" in refused.err
    assert "hint: create the directory" in refused.err
    assert not Path("new").exists()


def test_init_prints_no_password_and_writes_none_into_comments(cli: Cli) -> None:
    Path("Dockerfile").write_text(
        "FROM debian:12\nADD https://ada:hunter2@h/x /y\n"
        "RUN pip install https://ada:hunter2@h/x-1-py3-none-any.whl\n"
    )
    result = cli("init", "--from", "Dockerfile", "--force")
    assert result.code == 1
    assert "does not do everything that Dockerfile says" in result.err
    assert "hunter2" not in result.out + result.err
    assert "ADD https://***@h/x" in Path("build.envd").read_text()


@pytest.mark.parametrize(
    ("words", "name", "expected"),
    [
        ((), "", ()),
        (("digits",), "digits", ()),
        (("--", "ls", "-l"), "", ("ls", "-l")),
        (("-q", "--", "ls"), "", ("ls",)),
        (("digits", "ls", "--", "x"), "digits", ("ls", "--", "x")),
        (("digits", "--", "ls", "--", "x"), "digits", ("ls", "--", "x")),
        (("--",), "", ()),
    ],
)
def test_what_follows_two_dashes_is_the_command_of_ssh(
    home: Path, words: tuple[str, ...], name: str, expected: tuple[str, ...]
) -> None:
    with ssh.command.make_context("ssh", list(words), obj=Session(())) as context:
        assert (context.params["name"], context.params["args"]) == (name, expected)
