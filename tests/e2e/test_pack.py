"""Pack a model, verify it, run it: in the real program and real containers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from danlu.oci.image import extend_config
from danlu.oci.tar import NormalizeOptions, write_layer
from danlu.store import Store
from tests.e2e.conftest import Project, start
from tests.engines import docker_daemon, engine_variables
from tests.oci.registries import debian_registry
from tests.test_repository import ROOT

pytestmark = [pytest.mark.real, pytest.mark.needs("root"), pytest.mark.timeout(600)]

PREDICTOR = """
import numpy as np
from scaling import scale


class Linear:
    example = [[1.0, 2.0], [3.0, 4.0]]

    def load(self, directory):
        self.weights = np.load(f"{directory}/weights.npy")

    def predict(self, rows: list) -> dict:
        return {"y": scale(np.asarray(rows) @ self.weights), "count": len(rows)}
"""
MODEL = """
import os, numpy
os.makedirs("model", exist_ok=True)
numpy.save("model/weights.npy", [2.0, 3.0])
"""
BAD = """
class Bad:
    example = 1

    def load(self, directory):
        pass

    def predict(self, x: int):
        {}
"""


def pack(project: Project, *arguments: str) -> dict[str, Any]:
    """The result of packing the project's model."""
    found = project("pack", "model", "--format", "json", *arguments)
    value: dict[str, Any] = json.loads(found.stdout)
    return value


@pytest.fixture
def linear(project: Project) -> Project:
    """A project with a model of two weights and its predictor."""
    project.write(
        'install.python(version="3.11")', 'install.apt_packages(["ed"])',
        'install.python_packages(name=["numpy", "six"])',
    )  # fmt: skip
    (project.directory / "predict.py").write_text(PREDICTOR)
    (project.directory / "scaling.py").write_text("def scale(values):\n    return values * 10\n")
    project.run("python", "-c", MODEL)
    return project


def test_a_packed_model_is_smaller_verified_and_answers(linear: Project) -> None:
    result = pack(linear, "-t", "linear:1", "--predictor", "predict.py:Linear", "--no-server")
    assert [name.partition("==")[0] for name in result["packages"]] == ["numpy"]
    assert result["dropped"] == ["pip", "six"]
    assert "ed" in result["dropped_system"]
    assert result["size"] < result["training_size"]
    # The base, NumPy, and the virtual environment are the training image's own layers.
    assert result["shared_layers"] >= 3

    verified = linear("verify", "linear:1")
    assert "3 values compared, largest difference 0" in verified.stdout
    assert "1 of 1 package have the version" in verified.stdout
    assert "proved equal to the training environment" in verified.stderr

    answer = linear("run", "--image", "linear:1", "--", "sh", "-c",
        "echo '[[1, 1]]' | python /opt/predictor/run.py")  # fmt: skip
    assert json.loads(answer.stdout) == {"y": [50.0], "count": 1}
    missing = linear(
        *("run", "--image", "linear:1", "--", "sh", "-c", "which ed; python -c 'import six'"),
        check=False,
    )
    assert "No module named 'six'" in missing.stderr
    assert missing.stdout == ""

    # A packed image trains, too.
    (linear.directory / "again.py").write_text(
        "import numpy\nprint('trained', numpy.ones(3).sum())\n"
    )
    trained = linear("train", "again.py", "--framework", "pytorch", "--image", "linear:1")
    assert "trained 3.0" in trained.stdout + trained.stderr


def test_failures_have_one_clear_result_and_move_no_name(linear: Project) -> None:
    pack(linear, "-t", "kept:1", "--predictor", "predict.py:Linear")
    before = linear("image", "show", "kept:1", "--format", "json").stdout
    for body, message in {
        "import missing_module": "needs module missing_module, which is not in the training",
        "import urllib.request; urllib.request.urlopen('http://weights.example/x')": (
            "needs the network (weights.example)"
        ),
        "return {'score': [1, __import__('time').time_ns()]}": "depend on time or randomness",
        "return {'score': __import__('os').urandom(4)}": "depend on time or randomness",
        "import pickle; pickle.loads(b'junk')": "cannot load the pickle",
        "return object()": "predict returned a object",
        "import os; os._exit(7)": "ended without a report (exit code 7)",
        "raise SystemExit(3)": "SystemExit: 3",
    }.items():
        (linear.directory / "bad.py").write_text(BAD.format(body))
        failed = linear("pack", "model", "-t", "kept:1", "--predictor", "bad.py:Bad", check=False)
        assert message in failed.stderr, (body, failed.stderr)
        assert failed.returncode in (1, 3)
        assert "internal error" not in failed.stderr
    assert linear("image", "show", "kept:1", "--format", "json").stdout == before


def test_what_tracing_cannot_see_is_named_and_kept(linear: Project) -> None:
    """The first call imports numpy only in a process of its own, which is not traced."""
    (linear.directory / "hidden.py").write_text(
        "import subprocess, sys\n"
        "class Hidden:\n"
        "    example = 1\n"
        "    def load(self, directory): pass\n"
        "    def predict(self, x: int) -> str:\n"
        "        code = 'import six; print(six.__name__)'\n"
        "        return subprocess.check_output([sys.executable, '-c', code], text=True)\n"
    )
    options = ("-t", "hidden:1", "--predictor", "hidden.py:Hidden")
    failed = linear("pack", "model", *options, check=False)
    assert failed.returncode == 1
    assert "CalledProcessError" in failed.stderr
    assert pack(linear, *options, "--keep", "six")["packages"][0].startswith("six==")


def test_verify_finds_another_output(linear: Project, real_home: Path) -> None:
    pack(linear, "-t", "linear:2", "--predictor", "predict.py:Linear")
    with Store.open(real_home / "store") as store, store.lease(), store.staging() as work:
        image = store.image("linear:2")
        assert image is not None
        model = work / "tree" / "opt" / "predictor" / "model"
        model.mkdir(parents=True)
        np.save(model / "weights.npy", np.array([2.0, 3.5]))
        rules = NormalizeOptions(mtime=0, uid=0, gid=0)
        summary = write_layer(work / "tree", None, normalise=rules)
        layer = store.commit_layer(work / "tree", summary, created_by="edit", normalise=rules)
        config = extend_config(image.config, layer.diff_id, "edit")
        store.put_image(config, [*image.layers, layer.diff_id], names=["edited:1"])
    changed = linear("verify", "edited:1", check=False)
    assert changed.returncode == 1
    assert "largest difference 20 at [0].y[1]" in changed.stdout
    assert "[0].y[0]: 80.0 recorded, 90.0 now" in changed.stderr
    assert linear("verify", "edited:1", "--tolerance", "1").returncode == 0


def test_other_images_are_no_packed_models(linear: Project) -> None:
    linear("build", "-t", "plain:1")
    other = linear("verify", "plain:1", check=False)
    assert other.returncode == 2
    assert "plain:1 is not a packed model" in other.stderr


@pytest.mark.slow
@pytest.mark.needs("docker-registry")
def test_a_new_version_pushes_only_its_weights(linear: Project, tmp_path: Path) -> None:
    """Its large file, the recording, the configuration and the manifest; read from the log."""
    make = (
        "import os, numpy; os.makedirs('model', exist_ok=True);"
        " numpy.save('model/large.npy', numpy.random.default_rng({}).random(1 << 18));"
        " numpy.save('model/weights.npy', [2.0, {}])"
    )
    log = tmp_path / "registry.log"
    with debian_registry(log=log) as host:
        uploads, layers = [], []
        for version in (1, 2):
            linear.run("python", "-c", make.format(version, 3.0))
            name = f"{host}/linear:{version}"
            pack(linear, "-t", name, "--predictor", "predict.py:Linear")
            before = log.read_text().count("PUT /v2/linear/blobs/uploads") if log.exists() else 0
            linear("image", "push", name)
            uploads.append(log.read_text().count("PUT /v2/linear/blobs/uploads") - before)
            shown = json.loads(linear("image", "show", name, "--format", "json").stdout)
            layers.append([layer["diff_id"] for layer in shown["layers"]])
    changed = [layer for layer in layers[1] if layer not in layers[0]]
    # Only the large file: the outputs do not depend on it, so the recording is the same.
    assert len(changed) == 1
    assert uploads[1] == len(changed) + 1  # and the configuration
    assert uploads[0] > uploads[1]


@pytest.mark.slow
def test_the_image_has_no_tools_of_the_development_image(project: Project) -> None:
    project.write(
        'install.python(version="3.11")', 'install.apt_packages(["build-essential"])',
        'install.python_packages(name=["numpy"])', "config.jupyter()",
        base='    base(os="debian12", dev=True)\n',
    )  # fmt: skip
    (project.directory / "predict.py").write_text(PREDICTOR)
    (project.directory / "scaling.py").write_text("def scale(values):\n    return values * 10\n")
    project.run("python", "-c", MODEL)
    result = pack(project, "-t", "small:1", "--predictor", "predict.py:Linear")
    assert result["size"] <= 0.6 * result["training_size"]
    tools = (
        "for tool in gcc g++ make git jupyter pip curl; do command -v $tool; done; ls /root/.cache"
    )
    found = project("run", "--image", "small:1", "--", "sh", "-c", tools, check=False)
    assert found.stdout == ""


@pytest.mark.slow
def test_a_model_of_5_gb_is_packed_with_bounded_memory(linear: Project, real_home: Path) -> None:
    """The file is sparse; no process of danlu needs an eighth of its size in memory."""
    with (linear.directory / "model" / "huge.bin").open("wb") as file:
        file.truncate(5_000_000_000)
    program = str(Path(sys.executable).with_name("danlu"))
    script = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:]);"
        " print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(done.returncode)"
    )
    words = ("pack", "model", "-t", "huge:1", "--predictor", "predict.py:Linear")
    finished = subprocess.run(
        [sys.executable, "-c", script, program, *words],
        cwd=linear.directory,
        env={**os.environ, "DANLU_HOME": str(real_home)},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout.split()[-1]) < 600_000  # KiB


def test_an_object_is_packed_from_python(linear: Project, real_home: Path) -> None:
    """In a process with threads, as a notebook is."""
    (linear.directory / "call.py").write_text(
        "import threading, danlu\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "lines = []\n"
        "found = danlu.pack('model', 'called:1', predictor='predict.py:Linear',\n"
        "                   example=[[1.0, 1.0]], drop=['six'], log=lines.append)\n"
        "assert found['examples'] == 1 and found['dropped'] == ['pip', 'six'], found\n"
        "assert any('checking' in line for line in lines)\n"
        "try:\n"
        "    danlu.pack(object(), 'called:2')\n"
        "except Exception as error:\n"
        "    print(error)\n"
    )
    finished = subprocess.run(
        [sys.executable, "call.py"],
        cwd=linear.directory,
        env={**os.environ, "DANLU_HOME": str(real_home)},
        capture_output=True,
        text=True,
    )
    assert finished.stdout == "no ready-made predictor fits a object\n", finished.stderr
    assert "proved equal" in linear("verify", "called:1").stderr


def test_a_packed_model_is_served_until_sigterm(linear: Project, real_home: Path) -> None:
    """Every request until then is answered; nothing runs afterwards."""
    pack(linear, "-t", "served:7", "--predictor", "predict.py:Linear", "--grpc")
    options = ("-p", "0", "--workers", "2", "--grpc-port", "0")
    with start(linear, real_home, "serve", "served:7", *options) as process:
        assert process.stderr is not None
        lines: list[str] = []
        while sum("is ready" in line for line in lines) < 2:
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        grpc_port, port = (int(line.rpartition(":")[2]) for line in lines[:2])
        with socket.create_connection(("127.0.0.1", grpc_port)) as rpc:
            rpc.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04" + bytes(5))
            with rpc.makefile("rb") as frames:
                assert frames.read(9)[3] == 4  # SETTINGS (RFC 9113, section 6.5)
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:

            def ask(path: str, value: Any) -> Any:
                body = json.dumps(value)
                connection.request("POST", path, body, {"content-type": "application/json"})
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read())

            tensor = {"name": "rows", "datatype": "FP64", "shape": [2, 2], "data": [1, 1, 0, 2]}
            status, answer = ask("/v2/models/served/versions/7/infer", {"inputs": [tensor]})
            assert status == 200
            assert answer["outputs"][0] == {
                "name": "y", "datatype": "FP64", "shape": [2], "data": [50.0, 60.0],
            }  # fmt: skip
            assert ask("/invocations", {"rows": "x"})[0] == 400
            process.terminate()
            assert ask("/invocations", [[1, 1]]) == (200, {"y": [50.0], "count": 1})
            assert process.wait(60) == 0
        with pytest.raises(ConnectionRefusedError):
            http.client.HTTPConnection("127.0.0.1", port).connect()
    pack(linear, "-t", "served:8", "--predictor", "predict.py:Linear")
    plain = linear("serve", "served:8", "--grpc-port", "0", check=False)
    assert (plain.returncode, "was packed without --grpc" in plain.stderr) == (2, True)
    refused = linear("serve", "missing:1", check=False)
    assert refused.returncode == 2
    pack(linear, "-t", "bare:1", "--predictor", "predict.py:Linear", "--no-server")
    assert "has no model server" in linear("serve", "bare:1", check=False).stderr


def test_a_model_is_served_in_the_background_until_it_is_removed(linear: Project) -> None:
    pack(linear, "-t", "linear:1", "--predictor", "predict.py:Linear")
    check_background_server(linear)
    # A server that cannot start is removed, and its last lines are the error.
    failed = linear("serve", "linear:1", "-d", "-p", "0", "--gpus", "7", check=False)
    assert failed.returncode != 0
    assert linear("serve", "ls", "-q").stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("docker", marks=pytest.mark.needs("docker", "dockerd")),
        pytest.param("podman", marks=pytest.mark.needs("podman")),
    ],
)
def test_an_engine_serves_a_model_in_the_background(
    linear: Project, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(linear, "-t", "linear:1", "--predictor", "predict.py:Linear")
    with engine_variables(engine) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        check_background_server(linear, "--on", engine)


@pytest.mark.slow
@pytest.mark.parametrize(
    "server", ["bentoml==1.4.40", "mlserver==1.7.1", "litserve==0.2.19", "kserve==0.21.0"]
)
def test_other_servers_call_the_packed_predictor(linear: Project, server: str) -> None:
    name = server.partition("==")[0]
    refused = linear("pack", "model", "-t", "other:1", "--predictor", "predict.py:Linear",
        "--server", name, check=False)  # fmt: skip
    assert f"the environment has no package {name}" in refused.stderr
    linear.write(
        'install.python(version="3.11")',
        f'install.python_packages(name=["numpy", "six", "{server}"])',
    )
    pack(linear, "-t", "other:1", "--predictor", "predict.py:Linear", "--server", name)
    assert "proved equal" in linear("verify", "other:1").stderr
    url = linear("serve", "other:1", "-d", "-p", "0").stdout.strip()
    path = "/invocations"
    good: Any = [[1, 1]]
    bad: Any = "x"
    if name == "mlserver":
        path = "/v2/models/other/infer"
        good, bad = (
            {"inputs": [{"name": at, "datatype": "FP64", "shape": [1, 2], "data": [1, 1]}]}
            for at in ("rows", "others")
        )
    elif name == "kserve":
        path = "/v1/models/other:predict"
        good, bad = {"instances": good}, {"instances": bad}
    address = url.removeprefix("http://")
    with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as connection:

        def ask(value: Any) -> tuple[int, Any]:
            headers = {"content-type": "application/json"}
            connection.request("POST", path, json.dumps(value), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())

        status, answer = ask(good)
        assert status == 200, answer
        if name == "mlserver":
            answer = {item["name"]: item["data"] for item in answer["outputs"]}
            assert answer == {"y": [50.0], "count": [1]}
        elif name == "kserve":
            assert answer == {"predictions": {"y": [50.0], "count": 1}}
        else:
            assert answer == {"y": [50.0], "count": 1}
        assert ask(bad)[0] == 400
    linear("serve", "rm", "other")


def check_background_server(project: Project, *on: str) -> None:
    """Serve ``linear:1``, the same again, with other options, under another name; remove it."""
    started = project("serve", "linear:1", "-d", "-p", "0", *on)
    url = started.stdout.strip()
    address, port = url.removeprefix("http://").split(":")
    assert address == "127.0.0.1"

    def ask() -> Any:
        with contextlib.closing(http.client.HTTPConnection(address, int(port))) as connection:
            headers = {"content-type": "application/json"}
            connection.request("POST", "/invocations", "[[1, 1]]", headers)
            return json.loads(connection.getresponse().read())

    assert ask() == {"y": [50.0], "count": 1}
    (row,) = json.loads(project("serve", "ls", "--format", "json").stdout)
    assert (row["name"], row["image"], row["state"], row["url"]) == (
        *("linear", "linear:1", "Ready", url),
    )
    taken = project("serve", "linear:1", "-d", "-n", "other", "-p", port, *on, check=False)
    assert (taken.returncode, "cannot listen on" in taken.stderr) == (2, True)
    changed = project("serve", "linear:1", "-d", "-p", port, "--workers", "2", *on)
    assert changed.stdout.strip() == url
    assert ask() == {"y": [50.0], "count": 1}
    assert "is ready" in project("serve", "logs", "linear").stdout
    assert "Ready" in project("serve", "status", "linear").stdout
    project("serve", "rm", "linear")
    with pytest.raises(ConnectionRefusedError):
        ask()
    assert project("serve", "ls", "-q").stdout == ""
    assert "no served model linear" in project("serve", "rm", "linear", check=False).stderr


@pytest.mark.slow
@pytest.mark.needs("docker", "dockerd", "docker-registry")
@pytest.mark.timeout(900)
def test_the_digits_example_predicts_in_docker_as_in_training(project: Project) -> None:
    """Trained, packed, pushed, run by Docker from the registry and by danlu from its store."""
    development = ("-f", "build.envd:development")
    for file in ("build.envd", "digits.py", "network.py", "train.py", "predict.py"):
        shutil.copy(ROOT / "examples" / "digits" / file, project.directory)
    project("run", *development, "--", "python", "train.py")
    expected = json.loads(
        project(
            *("run", *development, "--", "python", "-c"),
            "import json; from digits import held_out_split; from network import Network\n"
            "images = held_out_split()[1][:20]\n"
            "json.dump(images.tolist(), open('images.json', 'w'))\n"
            "print(json.dumps(Network('model.npz').score(images).tolist()))",
        ).stdout
    )
    with debian_registry() as host, docker_daemon() as docker:
        name = f"{host}/digits:1"
        packed = project("pack", "model.npz", *development, "-t", name,
            "--predictor", "predict.py:Digits", "--format", "json")  # fmt: skip
        result = json.loads(packed.stdout)
        assert result["size"] <= 0.6 * result["training_size"]
        assert not {"scikit-learn", "scipy", "jupyterlab", "pip"} & {
            package.partition("==")[0] for package in result["packages"]
        }
        project("image", "push", name)
        docker.pull(name)
        images = f"{project.directory}/images.json"
        answers = [
            docker("run", "--rm", "--network=none", *docker.options, "-v", f"{images}:/images.json",
                name, "sh", "-c", "python /opt/predictor/run.py </images.json"),
            project("run", "--image", name, "-v", f"{images}:/images.json", "--", "sh", "-c",
                "python /opt/predictor/run.py </images.json").stdout,
        ]  # fmt: skip
    for answer in answers:
        scores = json.loads(answer)["scores"]
        assert np.abs(np.array(scores) - np.array(expected)).max() <= 1e-6
