"""The implementation of ``danlu.pack``: save an object, and run ``danlu pack`` on it.

In a new process, because a build needs one without threads, which a notebook has.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from danlu.errors import StepFailed, UsageError
from danlu.util.danlu_program import danlu_program

_MAX_LINES = 40


def pack_object(
    model: Any,
    tag: str,
    *,
    example: Any,
    predictor: str,
    env: str,
    keep: Sequence[str],
    drop: Sequence[str],
    log: Callable[[str], object] | None,
) -> dict[str, Any]:
    """Pack a model or a model directory; see :func:`danlu.pack`."""
    with tempfile.TemporaryDirectory(prefix="danlu-pack-") as name:
        place = Path(name)
        if isinstance(model, (str, os.PathLike)):
            directory = Path(model).absolute()
        else:
            directory = place / "model"
            directory.mkdir()
            save_model(model, example, directory)
        arguments = [str(directory), "-t", tag, "--format", "json", "--progress", "plain"]
        if example is not None:
            arguments += ["--example", str(_save_example(example, place))]
        for option, values in (
            ("--predictor", [predictor]), ("-f", [env]), ("--keep", keep), ("--drop", drop),
        ):  # fmt: skip
            for value in filter(None, values):
                arguments += [option, value]
        return _run_pack(arguments, log)


def _run_pack(arguments: Sequence[str], log: Callable[[str], object] | None) -> dict[str, Any]:
    lines: list[str] = []
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(
            [*danlu_program(), "pack", *arguments],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line.rstrip("\n"))
                if log is not None:
                    log(lines[-1])
        if process.returncode:
            found = [line for line in lines if line.startswith("error: ")]
            message = found[-1].removeprefix("error: ") if found else "danlu pack failed"
            raise StepFailed(message, code=process.returncode, details=tuple(lines[-_MAX_LINES:]))
        output.seek(0)
        result: dict[str, Any] = json.load(output)
    return result


def save_model(model: Any, example: Any, directory: Path) -> None:
    """Save an object in the form that a ready-made predictor loads.

    A scikit-learn estimator by joblib; a PyTorch network as
    TorchScript, traced with ``example`` unless it is scripted; an XGBoost model as UBJSON. Raises
    :class:`UsageError` for other objects.
    """
    modules = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    if "torch" in modules and callable(getattr(model, "state_dict", None)):
        _save_network(model, example, directory)
    elif "xgboost" in modules:
        model.save_model(directory / "model.ubj")
    elif "sklearn" in modules:
        importlib.import_module("joblib").dump(model, directory / "model.joblib")
    else:
        raise UsageError(
            f"no ready-made predictor fits a {type(model).__qualname__}",
            hint="save it into a directory, and pack that with predictor='FILE:CLASS'",
        )


def _save_network(model: Any, example: Any, directory: Path) -> None:
    torch = importlib.import_module("torch")
    network = model.eval()
    if not isinstance(network, torch.jit.ScriptModule):
        if example is None:
            raise UsageError("a PyTorch network needs an example input", hint="example=x")
        with torch.no_grad():
            network = torch.jit.trace(network, torch.as_tensor(example))
    network.save(str(directory / "model.pt"))


def _save_example(example: Any, place: Path) -> Path:
    """Write an example: arrays and tensors as nested lists, data frames as rows with names."""
    path = place / "example.json"
    try:
        text = json.dumps(example, default=_list_values)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the example has no JSON form: {error}", hint="pass numbers, text, lists or arrays"
        ) from error
    path.write_text(text, encoding="utf-8")
    return path


def _list_values(value: Any) -> Any:
    if hasattr(value, "to_numpy") and hasattr(value, "columns"):
        return value.to_dict("records")
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__qualname__} is not a number, text, list or array")
