"""The layers of wheels: from indexes, from the project, from addresses, from builds."""

from __future__ import annotations

import zipfile
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest

from danlu.builder.embedded.context import VertexResult
from danlu.builder.embedded.ops import squash
from danlu.builder.embedded.ops.wheel import execute
from danlu.errors import ChecksumError, OutsideError, ResolveError
from danlu.graph.ops import WHEEL_TIME, InstallScheme, Squash, Wheel, WheelSource
from danlu.oci.tar import NormalizeOptions, write_layer
from danlu.sources import downloads
from tests.builder.wheels import SCHEME, SITE, WheelBuilder
from tests.fakes.wheels import make_wheel, sha256_of


def test_each_wheel_is_one_layer_in_the_requested_order(builder: WheelBuilder) -> None:
    ops = [
        builder.op(make_wheel(builder.links, name, files={f"{name}.py": name}))
        for name in ("zeta", "alpha", "mid")
    ]
    layers = builder.build(*ops)
    assert [layer.created_by for layer in layers] == ["zeta 1.0", "alpha 1.0", "mid 1.0"]
    for layer, op in zip(layers, ops, strict=True):
        assert (layer.tree / SITE / f"{op.name}.py").read_text() == op.name
        again = write_layer(
            layer.tree, None, normalise=NormalizeOptions(WHEEL_TIME, WHEEL_TIME, 0, 0)
        )
        assert again.diff_id == layer.diff_id


def test_wheel_layer_does_not_depend_on_other_wheels(builder: WheelBuilder) -> None:
    ops = [
        builder.op(make_wheel(builder.links, name, files={"ns/" + name: "", "ns/same": "x"}))
        for name in ("a", "b", "c")
    ]
    together = builder.build(*ops)
    assert [builder.build(op)[0].diff_id for op in ops] == [layer.diff_id for layer in together]
    assert {layer.diff_id for layer in builder.build(*ops[::-1])} == {o.diff_id for o in together}


def test_schemes_have_different_layers(builder: WheelBuilder) -> None:
    op = builder.op(make_wheel(builder.links, "a", files={"a.py": ""}))
    other = Wheel(
        op.name, op.version, op.file, op.sha256, op.source, InstallScheme("/o", "3.9", "l", "/p")
    )
    first, second = builder.build(op, other)
    assert (first.tree / SITE / "a.py").exists()
    assert (second.tree / "o/l/a.py").exists()


def test_a_local_wheel_comes_from_the_project(builder: WheelBuilder) -> None:
    path = make_wheel(builder.project / "wheels", "mine", files={"m.py": "1"})
    (layer,) = builder.build(builder.op(path, "local", f"wheels/{path.name}"))
    names = {path.name for path in (layer.tree / SITE / "mine-1.0.dist-info").iterdir()}
    assert names == {"METADATA", "WHEEL", "RECORD", "INSTALLER"}, "no direct_url.json, no host"


def test_a_local_wheel_that_changed_is_refused(builder: WheelBuilder) -> None:
    path = make_wheel(builder.project, "mine", files={"m.py": "1"})
    op = builder.op(path, "local", path.name)
    make_wheel(builder.project, "mine", files={"m.py": "2"})
    with pytest.raises((ChecksumError, OutsideError)):
        builder.build(op)
    path.unlink()
    with pytest.raises(OutsideError, match="no longer exists in the project"):
        builder.build(op)


@pytest.mark.parametrize("kind", ["local", "index"])
def test_a_wheel_that_expands_too_much_is_rejected(
    builder: WheelBuilder, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("danlu.oci.archive._SIZE_FLOOR", 1 << 16)
    directory = builder.links if kind == "index" else builder.project
    path = make_wheel(directory, "bomb", files={"b.bin": b"\0" * (8 << 20)})
    with zipfile.ZipFile(path) as plain:
        members = {name: plain.read(name) for name in plain.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as compressed:
        for name, data in members.items():
            compressed.writestr(name, data)
    op = builder.op(path) if kind == "index" else builder.op(path, "local", path.name)
    context = builder.context()
    size = path.stat().st_size
    request = msgspec.structs.replace(context.request, sizes={op.sha256: size})
    context = msgspec.structs.replace(context, request=request)
    with pytest.raises(OutsideError, match=r"wheel of bomb is too large: .* unpacks to 8\.4 MB"):
        anyio.run(execute, op, context)
    assert not list((builder.paths.cache / "uv").rglob("b.bin"))


def test_wheel_of_a_url(builder: WheelBuilder, tmp_path: Path) -> None:
    path = make_wheel(tmp_path / "remote", "far", files={"f.py": "1"})
    (layer,) = builder.build(builder.op(path, "url", path.as_uri()))
    text = (layer.tree / SITE / "far-1.0.dist-info/direct_url.json").read_text()
    assert sha256_of(path) in text
    assert path.as_uri() in text


def test_a_built_wheel_is_its_inputs_artifact(builder: WheelBuilder) -> None:
    wheel = make_wheel(builder.project, "made", files={"m.py": "1"})
    directory = builder.paths.cache / "wheels" / sha256_of(wheel) / wheel.name
    directory.parent.mkdir(parents=True)
    wheel.rename(directory)
    op = Wheel("made", "", "", "", WheelSource("built"), SCHEME)
    inputs = (VertexResult((), (), artifacts={"wheel": directory}),)
    (layer,) = anyio.run(execute, op, builder.context(inputs=inputs))
    assert (layer.tree / SITE / "m.py").read_text() == "1"
    assert layer.created_by == "made 1.0"


def test_cached_wheels_need_no_network(builder: WheelBuilder) -> None:
    path = make_wheel(builder.links, "kept", files={"k.py": "1"})
    op = builder.op(path)
    (first,) = builder.build(op)
    (again,) = builder.build(op, offline=True)
    assert again.diff_id == first.diff_id
    other = builder.op(make_wheel(builder.links, "absent", files={"k.py": "1"}))
    (builder.links / other.file).unlink()
    with pytest.raises(OutsideError, match="--offline"):
        builder.build(other, offline=True)


def test_a_wheel_whose_layer_and_download_are_pruned_is_fetched_again(
    builder: WheelBuilder,
) -> None:
    op = builder.op(make_wheel(builder.links, "kept", files={"k.py": "1"}))
    (first,) = builder.build(op)
    assert downloads.cache_size(builder.paths.cache) == 0, "the layer has the same inodes"
    builder.store.collect(0)
    assert downloads.prune(builder.paths.cache, 0).count == 1
    assert builder.build(op)[0].diff_id == first.diff_id


def test_wheels_of_a_group_may_not_disagree_about_a_path(builder: WheelBuilder) -> None:
    def result(name: str, content: str) -> VertexResult:
        files = {"shared/x.py": content, f"{name}.py": ""}
        layers = tuple(builder.build(builder.op(make_wheel(builder.links, name, files=files))))
        return VertexResult(layers, layers)

    left, same, right = result("left", "1"), result("same", "1"), result("right", "2")
    (group,) = anyio.run(squash.execute, Squash(), builder.context(inputs=(left, same)))
    assert (group.tree / SITE / "same.py").exists()
    with pytest.raises(ResolveError, match=r"left and right both contain .*/shared/x\.py"):
        anyio.run(squash.execute, Squash(), builder.context(inputs=(left, right)))
