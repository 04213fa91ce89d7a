"""Which frameworks there are, and those that installed packages bring."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.training.registry import (
    BrokenFramework,
    broken_frameworks,
    framework_of,
    frameworks,
)

# As an outside package would write it, with another's functions for brevity.
GOOD = """
from dataclasses import replace
from danlu.training.frameworks.jax import FRAMEWORK as JAX

FRAMEWORK = replace(
    JAX, name="lightgbm", kind="LightGBMJob", plural="lightgbmjobs", aliases=("lgbm",)
)
"""


def install(site: Path, package: str, name: str, text: str) -> None:
    """What an installer leaves of a package with one module and one entry point."""
    module = package.replace("-", "_")
    (site / f"{module}.py").write_text(text)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[danlu.frameworks]\n{name} = {module}:FRAMEWORK\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on the path of modules, for packages of one test."""
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
def test_a_framework_is_found_by_kind_name_and_alias(word: str, kind: str) -> None:
    assert framework_of(word).kind == kind


def test_no_word_means_two_frameworks() -> None:
    words = [
        word.lower()
        for one in frameworks()
        for word in {one.name.lower(), one.kind.lower(), one.plural, *one.aliases}
    ]
    assert len(words) == len(set(words))


@pytest.mark.parametrize(
    ("word", "meant"), [("pytorhc", "pytorch"), ("PytorchJbo", "PyTorchJob"), ("jaxx", "jax")]
)
def test_an_unknown_word_is_answered_with_the_nearest(word: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        framework_of(word)
    assert caught.value.message == f"no framework is called '{word}'"
    assert caught.value.hint.startswith(f"did you mean {meant}? danlu knows pytorch, tensorflow")
    assert caught.value.details == ()
    assert caught.value.exit_code == 2


def test_what_is_near_nothing_is_answered_with_what_there_is() -> None:
    with pytest.raises(UsageError) as caught:
        framework_of("q")
    assert caught.value.hint.startswith("danlu knows pytorch, ")


def test_a_packages_framework_is_found_like_danlus_own(site: Path) -> None:
    install(site, "danlu-lightgbm", "lightgbm", GOOD)
    for word in ("lightgbm", "LightGBMJob", "lgbm", "lightgbmjobs"):
        assert framework_of(word).kind == "LightGBMJob"
    assert [one.name for one in frameworks()][-1] == "lightgbm"
    assert broken_frameworks() == ()


def test_a_package_that_cannot_be_imported_is_named_when_it_is_asked_for(site: Path) -> None:
    install(site, "danlu-broken", "broken", "import nothing_of_this_name\n")
    with pytest.raises(BrokenFramework) as caught:
        framework_of("Broken")
    assert caught.value.message == (
        "the framework broken of the package danlu-broken cannot be used: "
        "ModuleNotFoundError: No module named 'nothing_of_this_name'"
    )
    assert caught.value.hint == "update the package danlu-broken, or uninstall it"
    assert caught.value.exit_code == 2


def test_a_broken_package_harms_nobody_else(site: Path) -> None:
    install(site, "danlu-broken", "broken", "raise SystemError('no')\n")
    install(site, "danlu-lightgbm", "lightgbm", GOOD)
    assert framework_of("pytorch").kind == "PyTorchJob"
    assert framework_of("lightgbm").kind == "LightGBMJob"
    assert framework_of("LightGBMJob").kind == "LightGBMJob"
    assert "lightgbm" in [one.name for one in frameworks()]
    (broken,) = broken_frameworks()
    assert "danlu-broken" in broken.message


def test_a_broken_package_is_named_where_a_kind_is_unknown(site: Path) -> None:
    install(site, "danlu-broken", "broken", "raise SystemError('no')\n")
    with pytest.raises(UsageError, match="no framework is called 'BrokenJob'") as caught:
        framework_of("BrokenJob")
    (detail,) = caught.value.details
    assert "danlu-broken" in detail


def test_something_else_than_a_framework_is_refused(site: Path) -> None:
    install(site, "danlu-odd", "odd", "FRAMEWORK = 'odd'\n")
    with pytest.raises(BrokenFramework, match="danlu_odd:FRAMEWORK is a str, not a Framework"):
        framework_of("odd")


def test_a_package_cannot_take_the_place_of_another_framework(site: Path) -> None:
    install(site, "danlu-evil", "evil", GOOD.replace('"lightgbm"', '"PyTorch"'))
    assert framework_of("pytorch").kind == "PyTorchJob"
    assert len(frameworks()) == 7
    (broken,) = broken_frameworks()
    assert "danlu-evil cannot be used: PyTorchJob has that name" in broken.message
    with pytest.raises(BrokenFramework, match="danlu-evil"):
        framework_of("evil")


def test_danlus_own_frameworks_look_at_no_package() -> None:
    program = (
        "import sys, danlu.training.registry as r\n"
        "assert r.framework_of('PyTorchJob').name == 'pytorch'\n"
        "assert 'importlib.metadata' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
