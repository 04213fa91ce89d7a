"""The built-in frameworks, and those that installed packages add."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.training.registry import find_framework, list_frameworks
from danlu.util.plugins import BrokenPlugin

# As an external package would write it, reusing existing functions for brevity.
GOOD = """
from danlu.training.frameworks.jax import JaxFramework

class LightGBMFramework(JaxFramework):
    name = "lightgbm"
    kind = "LightGBMJob"
    plural = "lightgbmjobs"
    aliases = ("lgbm",)

FRAMEWORK = LightGBMFramework()
"""


def install(site: Path, package: str, name: str, text: str) -> None:
    """Install a package with one module and one entry point."""
    module = package.replace("-", "_")
    (site / f"{module}.py").write_text(text)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[danlu.frameworks]\n{name} = {module}:FRAMEWORK\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory on ``sys.path`` for the packages of a test."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("PyTorchJob", "PyTorchJob"),
        ("pytorchjob", "PyTorchJob"),
        ("pytorchjobs", "PyTorchJob"),
        ("pytorch", "PyTorchJob"),
        ("Torch", "PyTorchJob"),
        ("TFJob", "TFJob"),
        ("tf", "TFJob"),
        ("tensorflow", "TFJob"),
        ("mpi", "MPIJob"),
        ("xgboost", "XGBoostJob"),
        ("xgb", "XGBoostJob"),
        ("paddle", "PaddleJob"),
        ("paddlepaddle", "PaddleJob"),
        ("jax", "JAXJob"),
        ("mxnet", "MXJob"),
        ("MXNetJob", "MXJob"),
    ],
)
def test_framework_is_found_by_kind_name_and_alias(word: str, kind: str) -> None:
    assert find_framework(word).kind == kind


def test_framework_names_are_unique() -> None:
    words = [
        word.lower()
        for framework in list_frameworks()
        for word in {
            framework.name.lower(),
            framework.kind.lower(),
            framework.plural,
            *framework.aliases,
        }
    ]
    assert len(words) == len(set(words))


@pytest.mark.parametrize(
    ("word", "meant"), [("pytorhc", "pytorch"), ("PytorchJbo", "PyTorchJob"), ("jaxx", "jax")]
)
def test_unknown_framework_suggests_the_nearest_name(word: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_framework(word)
    assert caught.value.message == f"unknown framework '{word}'"
    assert caught.value.hint.startswith(f"did you mean {meant}? choose from pytorch, tensorflow")
    assert caught.value.details == ()
    assert caught.value.exit_code == 2


def test_unknown_framework_lists_all_names() -> None:
    with pytest.raises(UsageError) as caught:
        find_framework("q")
    assert caught.value.hint.startswith("choose from pytorch, ")


def test_framework_of_a_package_is_found(site: Path) -> None:
    install(site, "danlu-lightgbm", "lightgbm", GOOD)
    for word in ("lightgbm", "LightGBMJob", "lgbm", "lightgbmjobs"):
        assert find_framework(word).kind == "LightGBMJob"
    assert [framework.name for framework in list_frameworks()][-1] == "lightgbm"


def test_broken_package_is_reported_if_its_framework_is_requested(site: Path) -> None:
    install(site, "danlu-broken", "broken", "import nothing_of_this_name\n")
    with pytest.raises(BrokenPlugin) as caught:
        find_framework("Broken")
    assert caught.value.message == (
        "framework broken of package danlu-broken cannot be used: "
        "ModuleNotFoundError: No module named 'nothing_of_this_name'"
    )
    assert caught.value.hint == "update package danlu-broken, or uninstall it"
    assert caught.value.exit_code == 2


def test_broken_package_does_not_affect_other_frameworks(site: Path) -> None:
    install(site, "danlu-broken", "broken", "raise SystemError('no')\n")
    install(site, "danlu-lightgbm", "lightgbm", GOOD)
    assert find_framework("pytorch").kind == "PyTorchJob"
    assert find_framework("lightgbm").kind == "LightGBMJob"
    assert find_framework("LightGBMJob").kind == "LightGBMJob"
    assert "lightgbm" in [framework.name for framework in list_frameworks()]


def test_broken_package_is_reported_for_an_unknown_kind(site: Path) -> None:
    install(site, "danlu-broken", "broken", "raise SystemError('no')\n")
    with pytest.raises(UsageError, match="unknown framework 'BrokenJob'") as caught:
        find_framework("BrokenJob")
    (detail,) = caught.value.details
    assert "danlu-broken" in detail


def test_entry_point_that_is_not_a_framework_is_rejected(site: Path) -> None:
    install(site, "danlu-odd", "odd", "FRAMEWORK = 'odd'\n")
    with pytest.raises(BrokenPlugin, match="danlu_odd:FRAMEWORK is a str, not a Framework"):
        find_framework("odd")


def test_package_cannot_override_a_builtin_framework(site: Path) -> None:
    install(site, "danlu-evil", "evil", GOOD.replace('"lightgbm"', '"PyTorch"'))
    assert find_framework("pytorch").kind == "PyTorchJob"
    assert len(list_frameworks()) == 7
    named = "danlu-evil cannot be used: PyTorchJob already has that name"
    with pytest.raises(BrokenPlugin, match=named):
        find_framework("evil")


def test_builtin_frameworks_are_found_without_entry_points() -> None:
    program = (
        "import sys, danlu.training.registry as r\n"
        "assert r.find_framework('PyTorchJob').name == 'pytorch'\n"
        "assert 'importlib.metadata' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
