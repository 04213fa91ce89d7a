"""Installing the kernel, in the program and below it; no kernel is started here."""

from __future__ import annotations

import json
import struct
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from danlu.errors import MachineError, UsageError
from danlu.notebook import kernelspec
from danlu.notebook.kernelspec import (
    below,
    check_extra,
    description,
    install,
    installed,
    uninstall,
)
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from tests.cli.conftest import home as home
from tests.conftest import ROOT
from tests.notebook.kernels import alone, json_blocks


def told(place: Path) -> dict[str, object]:
    found = json.loads((place / "kernel.json").read_text())
    assert isinstance(found, dict)
    return found


def foreign(base: Path, name: str) -> Path:
    """Another program's kernel."""
    place = base / "kernels" / name
    place.mkdir(parents=True)
    (place / "kernel.json").write_text('{"argv": ["go-kernel"], "display_name": "Other"}')
    return place


def test_an_installed_kernel_starts_this_python_and_has_logos(tmp_path: Path) -> None:
    place = install(tmp_path)
    assert place == tmp_path / "kernels" / "danlu"
    argv = told(place)["argv"]
    assert isinstance(argv, list)
    assert argv[0] == sys.executable
    assert argv[-4:] == ["-m", "danlu.notebook.kernel", "-f", "{connection_file}"]
    assert sorted(one.name for one in place.iterdir()) == [
        "kernel.json",
        "logo-32x32.png",
        "logo-64x64.png",
        "logo-svg.svg",
    ]


def test_the_guide_shows_the_kernelspec_that_is_written(tmp_path: Path) -> None:
    (shown, *_) = json_blocks(ROOT / "docs/guides/kernels.md")
    assert shown == description("danlu", python="/opt/danlu/bin/python")


@pytest.mark.parametrize("side", [32, 64])
def test_logos_are_of_the_size_they_are_called_by_and_small(tmp_path: Path, side: int) -> None:
    data = (install(tmp_path) / f"logo-{side}x{side}.png").read_bytes()
    assert struct.unpack(">II", data[16:24]) == (side, side)
    assert len(data) < 2000


def test_a_kernel_can_have_the_name_that_old_notebooks_ask_for(tmp_path: Path) -> None:
    place = install(tmp_path, "KubeFlow", display_name="Kubeflow-Python3")
    assert place.name == "kubeflow"
    assert told(place)["display_name"] == "Kubeflow-Python3"
    assert told(install(tmp_path, "old"))["display_name"] == "old (danlu)"


@pytest.mark.parametrize("name", ["", "a b", "../up", "炉", "a/b"])
def test_what_can_be_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="can be no kernel's name"):
        install(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_danlus_own_kernel_is_renewed_and_another_programs_left_alone(tmp_path: Path) -> None:
    (install(tmp_path) / "left-over").touch()
    assert not (install(tmp_path) / "left-over").exists()
    place = foreign(tmp_path, "python3")
    with pytest.raises(UsageError, match="another program") as caught:
        install(tmp_path, "python3")
    assert "--replace" in caught.value.hint
    assert told(place)["display_name"] == "Other"
    install(tmp_path, "python3", replace=True)
    assert told(place)["display_name"] == "python3 (danlu)"


def test_only_danlus_kernels_are_listed_with_whether_their_python_is_there(tmp_path: Path) -> None:
    foreign(tmp_path, "other")
    (tmp_path / "kernels" / "broken").mkdir()
    place = install(tmp_path, "gone")
    changed = told(place) | {"argv": ["/nowhere/python", "-m", "danlu.notebook.kernel"]}
    (place / "kernel.json").write_text(json.dumps(changed))
    install(tmp_path)
    found = {one.name: (one.python, one.ready) for one in installed([tmp_path, tmp_path / "none"])}
    assert found == {"danlu": (sys.executable, True), "gone": ("/nowhere/python", False)}


def test_uninstall_removes_the_nearest_of_the_name_and_no_other_programs(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    first, second = install(near), install(far)
    assert uninstall((near, far)) == first
    assert second.exists()
    foreign(near, "other")
    with pytest.raises(UsageError, match="is not danlu's") as caught:
        uninstall((near,), "other")
    assert "jupyter kernelspec remove other" in caught.value.hint
    with pytest.raises(UsageError, match="no kernel of danlu called danli") as caught:
        uninstall((far,), "danli")
    assert "did you mean danlu?" in caught.value.hint


def test_a_missing_extra_is_an_error_that_says_how_to_add_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernelspec, "find_spec", lambda name: None)
    with pytest.raises(MachineError, match="needs ipykernel and cloudpickle") as caught:
        check_extra()
    assert caught.value.hint == "pip install 'danlu[notebook]'"


def test_a_directory_that_cannot_be_written_is_said_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="cannot be written") as caught:
        install(tmp_path / "file")
    assert "--user" in caught.value.hint


def test_sos_finds_the_language_module_by_its_entry_point() -> None:
    (found,) = entry_points(group="sos_languages", name="Danlu") or [None]
    if found is None:
        pytest.skip("this environment was made before the entry point: make setup")
    language = found.load()
    # SoS takes a kernel's language only under a name that differs from the kernel's.
    assert language.supported_kernels == {"Danlu": [kernelspec.NAME]}


def test_the_program_installs_lists_and_removes(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = alone(tmp_path, monkeypatch)
    place = below(prefix) / "kernels" / "danlu"
    done = cli("kernel", "install", "--prefix", str(prefix))
    assert (done.code, done.out.strip()) == (0, str(place))
    assert "Jupyter now offers the kernel danlu" in done.err
    (row,) = json.loads(cli("kernel", "ls", "--format", "json").out)
    assert row == {
        "name": "danlu",
        "display_name": "danlu",
        "python": sys.executable,
        "directory": str(place),
        "ready": True,
    }
    assert "danlu" in cli("kernel", "ls").out
    assert cli("kernel", "ls", "-q").out == "danlu\n"
    done = cli("kernel", "uninstall")
    assert (done.code, f"removed {place}" in done.err) == (0, True)
    assert cli("kernel", "uninstall").code == 2


def test_the_users_own_directory_is_where_it_goes_unless_told(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone(tmp_path, monkeypatch)
    mine = str(tmp_path / "data" / "kernels" / "danlu")
    assert cli("kernel", "install").out.strip() == mine
    assert cli("kernel", "install", "--user").out.strip() == mine


def test_a_prefix_where_jupyter_does_not_look_is_warned_of(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone(tmp_path, monkeypatch)
    done = cli("kernel", "install", "--prefix", str(tmp_path / "elsewhere"))
    assert done.code == 0
    assert f"JUPYTER_PATH={tmp_path / 'elsewhere/share/jupyter'}" in done.err


def test_two_places_at_once_are_wrong_usage(cli: Cli, tmp_path: Path) -> None:
    done = cli("kernel", "install", "--user", "--sys-prefix")
    assert done.code == 2
    assert "exclude one another" in done.err
