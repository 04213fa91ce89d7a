"""Results of replicas: only pickles of trusted replicas are opened."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from danlu.engine.settings import load_settings
from danlu.errors import UsageError
from danlu.jobs.local import file_exchange
from danlu.jobs.local.job_directory import JobDirectory
from danlu.jobs.results import ReplicaError, open_error, open_values, rebuild_error
from danlu.jobs.types import ContainerImage, JobResult, JobView, Submission
from danlu.replica_runtime import encoding, results
from danlu.submission import function_transport
from danlu.submission.options import TrainOptions
from danlu.submission.submission import build_submission
from danlu.training.types import Job, JobStatus
from danlu.util.paths import Paths


class UnpicklingTrap:
    """Records that it was unpickled."""

    sprung: list[int] = []

    def __reduce__(self) -> Any:
        return (record_unpickling, ())


def record_unpickling() -> None:
    UnpicklingTrap.sprung.append(1)


@pytest.fixture(autouse=True)
def sprung(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(UnpicklingTrap, "sprung", [])
    return UnpicklingTrap.sprung


def encode_result(form: str, monkeypatch: pytest.MonkeyPatch, **values: Any) -> bytes:
    """Return the result that a replica writes in this form."""
    monkeypatch.setenv(results.FORM, form)
    return bytes(results.encode_values(values, 1 << 20))


TRAPS = {
    "a pickle in place of all": pickle.dumps(
        {"python": "3.11.7", "values": {"x": UnpicklingTrap()}}
    ),
    "a pickled value": bytes(
        encoding.encode(
            {
                "python": "3.11.7",
                "values": {"x": {"form": "pickle", "data": pickle.dumps(UnpicklingTrap())}},
            }
        )
    ),
}


@pytest.mark.parametrize("data", TRAPS.values(), ids=TRAPS)
def test_untrusted_results_are_not_unpickled(data: bytes, sprung: list[int]) -> None:
    with pytest.raises(UsageError):
        open_values(data, trusted=False)
    view = JobView("job", "PyTorchJob", "pytorch", "Failed", JobStatus())
    with pytest.raises(UsageError):
        function_transport.leader_value(JobResult(view, data))
    assert function_transport.first_error(JobResult(view, raised={"worker-0": data})) is None
    assert open_error(data) is None
    assert sprung == []
    open_values(TRAPS["a pickled value"], trusted=True)
    assert sprung == [1]


def test_rejected_pickle_names_the_value_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class TensorModule:
        def state_dict(self) -> dict[str, int]:
            return {}

    data = encode_result("", monkeypatch, model={"layers": [TensorModule()]}, loss=0.5)
    with pytest.raises(UsageError) as caught:
        open_values(data, trusted=False, job="mnist")
    assert caught.value.message.startswith(
        "model was returned as a pickle, which is not trusted: model['layers'][0] is a tests."
    )
    assert caught.value.hint.startswith("return its .state_dict(); or if you trust what ran there")
    assert "%jobs attach mnist --trust-results" in caught.value.hint
    assert open_values(data, trusted=True)["loss"] == 0.5


def test_untrusted_plain_values_are_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = {"losses": [0.5, 0.25], "state": {"w": (1, 2)}}
    assert open_values(encode_result("", monkeypatch, **result), trusted=False) == result


def test_trusted_replica_returns_pickles(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_result("pickle", monkeypatch, x=[1])
    decoded = encoding.decode(data)["values"]["x"]
    assert (decoded["form"], pickle.loads(decoded["data"])) == ("pickle", [1])


# -- what was raised ------------------------------------------------------------------------------


def report(raised: BaseException, **changes: Any) -> ReplicaError | None:
    fields = {**results.describe_error(raised, "Traceback …\n"), **changes}
    return open_error(bytes(encoding.encode(fields)))


@pytest.mark.parametrize("error", [KeyError("k"), ZeroDivisionError("by zero"), OSError(2, "no")])
def test_builtin_exception_is_rebuilt_with_its_traceback(error: Exception) -> None:
    result = report(error)
    assert result is not None
    made = rebuild_error(result, trusted=False)
    assert (type(made), made.args if made else None) == (type(error), error.args)
    assert made is not None
    assert made.__notes__ == ["Traceback …"]


class CustomError(ValueError): ...


@pytest.mark.parametrize(
    ("error", "changes"),
    [
        (CustomError(1), {}),
        (ValueError(CustomError(1)), {}),
        (ValueError(1), {"type": "Trap"}),
        (ValueError(1), {"type": "SystemExit"}),
        (ValueError(1), {"type": "eval"}),
        (ValueError(1), {"error": {"data": pickle.dumps(UnpicklingTrap())}, "arguments": None}),
    ],
)
def test_untrusted_report_rebuilds_only_builtin_exceptions(
    error: Exception, changes: dict[str, Any], sprung: list[int]
) -> None:
    result = report(error, **changes)
    assert result is not None
    assert rebuild_error(result, trusted=False) is None
    assert sprung == []


def test_terminal_escapes_in_replica_reports_are_removed() -> None:
    result = report(ValueError(1), text="a\x1b[2Jb\nc", type="V\x1b]0;x\x07", message="\x1b[31mm")
    assert result is not None
    assert (result.text, result.type, result.message) == ("ab\nc", "V", "m")


def test_invalid_error_report_is_ignored() -> None:
    assert report(ValueError(1), time="soon") is None
    assert open_error(b"") is None


# -- trust ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "config", "trusted"),
    [
        ({"host_python": True}, "", True),
        ({"image": "somebody/torch"}, "", False),
        ({"image": "somebody/torch", "trust_results": True}, "", True),
        ({"image": "somebody/torch"}, "trust_results = true", True),
    ],
)
def test_host_python_is_trusted_and_a_named_image_is_not(
    fields: dict[str, Any],
    config: str,
    trusted: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from danlu.submission.plan import plan_job

    monkeypatch.setattr(
        "danlu.submission.submission.resolve_images",
        lambda names, **more: {name: ContainerImage("sha256:0", name) for name in names},
    )
    paths = Paths.of({"DANLU_HOME": str(tmp_path)})
    paths.config_file.parent.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text(config)
    settings = load_settings(paths)
    order = TrainOptions(directory=tmp_path, command=("true",), framework="pytorch", **fields)
    submission = build_submission(
        plan_job(order, settings=settings), order, settings=settings, progress=lambda event: None
    )
    assert submission.trusted is trusted


@pytest.mark.parametrize(
    ("recorded", "images", "trusted"),
    [
        (None, {}, True),
        (None, {"x": ContainerImage("sha256:0")}, False),
        (True, {"x": ContainerImage("sha256:0")}, True),
        (False, {}, False),
    ],
)
def test_process_job_of_an_earlier_version_is_trusted(
    recorded: bool | None, images: dict[str, ContainerImage], trusted: bool, tmp_path: Path
) -> None:
    job = Job("PyTorchJob", "job", {})
    assert (
        file_exchange.may_unpickle(Submission(job, tmp_path, images, trusted=recorded)) is trusted
    )


def test_result_that_is_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    import os

    secret = tmp_path / "secret"
    secret.write_bytes(b"of this machine")
    for name in ("worker-0", "worker-1", "worker-2", "worker-3"):
        (tmp_path / "results" / name).mkdir(parents=True)
    (tmp_path / "results/worker-0/value").symlink_to(secret)
    os.mkfifo(tmp_path / "results/worker-1/value")
    (tmp_path / "results/worker-2/value").mkdir()
    (tmp_path / "results/worker-3/value").write_bytes(b"own")
    with open(tmp_path / "results/worker-3/raised", "wb") as file:
        file.truncate(1 << 40)
    directory = JobDirectory(tmp_path)
    assert (file_exchange.read_values(directory), file_exchange.read_errors(directory)) == (
        {"worker-3": b"own"},
        {},
    )
