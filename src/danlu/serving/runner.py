"""Load a predictor and call it: the program of packed models, run inside containers.

It is copied to the image, next to ``predictor_values.py``, and imports nothing else but the
standard library. Python 3.9 and later.

    run.py                     read one input as JSON from stdin, write the output as JSON
    run.py record OUT          run the examples, trace what is used; write OUT/report.json
    run.py replay OUT          run the recorded inputs; write OUT/report.json
    run.py schema              print the schema

An input is an object with the parameters of ``predict`` by name; a predictor with one parameter
also takes its value alone. In reports, arrays are ``{"$array": {"dtype", "shape", "data"}}`` with
base64 of the little-endian bytes, ``bytes`` are ``{"$bytes": base64}``; with stdin and stdout,
arrays are nested lists and ``bytes`` are ``{"b64": base64}``.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
import socket
import sys
import traceback
from importlib import metadata
from typing import Any

try:
    from . import predictor_values as values
except ImportError:  # in the image
    import predictor_values as values  # type: ignore[import-not-found,no-redef]

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "model")
CODE = os.path.join(HERE, "code")

_MAX_TRACEBACK = 20000


# -- examples -------------------------------------------------------------------------------------


def read_examples(predictor: Any, directory: str) -> list[Any]:
    """Return the inputs of the files in ``directory``, else those of the predictor."""
    files = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    found = [value for name in files for value in _read_example(os.path.join(directory, name))]
    if found:
        return found
    for name, is_list in (("examples", True), ("example", False)):
        value = getattr(predictor, name, None)
        value = value() if callable(value) else value
        if value is not None:
            return list(value) if is_list else [value]
    raise values.InvalidInputError("no example input")


def _read_example(path: str) -> list[Any]:
    name = os.path.basename(path).split("-", 1)[-1]
    try:
        if path.endswith((".npy", ".npz")):
            numpy = importlib.import_module("numpy")
            value = numpy.load(path, allow_pickle=False)
            return [dict(value)] if path.endswith(".npz") else [value]
        with open(path, encoding="utf-8") as file:
            if path.endswith(".jsonl"):
                return [values.decode_json(line) for line in file if line.strip()]
            return [values.decode_json(file.read())]
    except (ValueError, OSError, values.InvalidInputError) as error:
        raise values.InvalidInputError(f"cannot read the example {name}: {error}") from error


# -- what is used ---------------------------------------------------------------------------------


class UsageTrace:
    """Records the files that this process opens, programs it starts and hosts it wants to reach."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.hosts: list[str] = []
        self._is_active = True
        sys.addaudithook(self._observe_event)

    def stop(self) -> None:
        """Record no more; an audit hook cannot be removed."""
        self._is_active = False

    def _observe_event(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._is_active:
            return
        if event == "open" and isinstance(args[0], (str, bytes)):
            self.files.add(os.fsdecode(args[0]))
        elif event == "subprocess.Popen" or event == "os.exec" or event == "os.posix_spawn":
            program = os.fsdecode(args[0] or "")
            self.files.add(shutil.which(program) or program)
        elif event == "socket.getaddrinfo" and args[0]:
            host = args[0].decode() if isinstance(args[0], bytes) else str(args[0])
            self._add_host(host)
        elif event == "socket.connect" and isinstance(args[1], tuple):
            self._add_host(str(args[1][0]))

    def _add_host(self, host: str) -> None:
        if host not in self.hosts and host not in ("localhost", "127.0.0.1", "::1"):
            self.hosts.append(host)

    def list_files(self) -> list[str]:
        """Return the real paths of all files that were opened, imported or mapped."""
        found = set(self.files)
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str):
                found.add(file)
        try:
            with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
                found.update(line.split(None, 5)[-1].strip() for line in file if "/" in line)
        except OSError:
            pass
        plain: set[str] = set()
        for path in found:
            if path.endswith(".pyc") and "__pycache__" in path:
                try:
                    path = importlib.util.source_from_cache(path)
                except ValueError:
                    continue
            if path and os.path.isabs(path):
                plain.update((path, os.path.realpath(path)))
        return sorted(path for path in plain if os.path.isfile(path))


def find_distributions(files: list[str]) -> dict[str, Any]:
    """Map files to installed distributions by their RECORD.

    Returns ``installed`` (name to version), ``used`` (name to the number of its files among
    ``files``), ``modules`` (top-level module to the distributions that have it), and ``requires``
    (name to its requirements, as written). The metadata
    of a distribution counts, unless that of all was read.
    """
    wanted = set(files)
    installed: dict[str, str] = {}
    used: dict[str, int] = {}
    looked_up: dict[str, int] = {}
    modules: dict[str, list[str]] = {}
    requires: dict[str, list[str]] = {}
    for distribution in metadata.distributions():
        name = _normalize_name(distribution.metadata["Name"] or "")
        installed.setdefault(name, distribution.version)
        requires.setdefault(name, list(distribution.requires or ()))
        for entry in distribution.files or ():
            top = entry.parts[0]
            path = str(entry.locate())
            if top.endswith((".dist-info", ".egg-info")):
                if entry.name in ("METADATA", "PKG-INFO") and path in wanted:
                    looked_up[name] = 1
                continue
            if top != ".." and entry.suffix in (".py", ".so", ".pyi"):
                owners = modules.setdefault(top.partition(".")[0], [])
                if name not in owners:
                    owners.append(name)
            if path in wanted or os.path.realpath(path) in wanted:
                used[name] = used.get(name, 0) + 1
    if len(looked_up) < len(installed):
        for name in looked_up:
            used.setdefault(name, 0)
    return {"installed": installed, "used": used, "modules": modules, "requires": requires}


def _normalize_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def find_system_packages(files: list[str]) -> list[str]:
    """Return the Debian packages that have any of ``files`` (dpkg-query(1), ``--search``)."""
    directory = "/var/lib/dpkg/info"
    # A merged /usr: packages list /lib/…, whose real path is /usr/lib/….
    wanted = set(files)
    wanted.update(path[4:] for path in files if path.startswith("/usr/"))
    found = []
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
        if name.endswith(".list"):
            with open(os.path.join(directory, name), encoding="utf-8", errors="replace") as file:
                if any(line.rstrip("\n") in wanted for line in file):
                    found.append(name[: -len(".list")].partition(":")[0])
    return found


# -- the predictor --------------------------------------------------------------------------------


def load_predictor(about: dict[str, Any]) -> Any:
    """Import the predictor's class and load the model."""
    sys.path.insert(0, CODE)
    kind = getattr(importlib.import_module(about["module"]), about["class"])
    for name in ("load", "predict"):
        if not callable(getattr(kind, name, None)):
            raise values.InvalidInputError(f"{about['class']} has no method {name}")
    predictor = kind()
    if "options" in about:
        predictor.options = about["options"]
    predictor.load(MODEL)
    return predictor


def read_json(name: str) -> Any:
    """Return the content of a file next to this program."""
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return json.load(file)


def write_report(directory: str, report: dict[str, Any]) -> None:
    """Write ``report.json``, whole or not at all."""
    path = os.path.join(directory, "report.json")
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(report, file)
    os.replace(path + ".new", path)


def describe_error(error: BaseException, phase: str, trace: UsageTrace | None) -> dict[str, Any]:
    """Return what went wrong in a form that ``danlu pack`` explains."""
    kind, name = "error", ""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    for cause in chain:
        cause_type = type(cause).__name__
        if isinstance(cause, values.InvalidInputError):
            kind = "input"
        elif cause_type == "PackageNotFoundError":
            kind, name = "distribution", str(cause.args[0] if cause.args else "")
        elif isinstance(cause, ModuleNotFoundError):
            kind, name = "module", cause.name or ""
        elif cause_type == "UnpicklingError" or (
            phase == "load" and isinstance(cause, AttributeError) and "get attribute" in str(cause)
        ):
            kind = "pickle"
        elif isinstance(cause, (socket.gaierror, ConnectionError)):
            kind = "network"
    if trace is not None and trace.hosts and kind == "error":
        kind = "network"
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {
        "phase": phase,
        "kind": kind,
        "name": name,
        "message": f"{type(error).__name__}: {error}"[:2000],
        "traceback": text[-_MAX_TRACEBACK:],
        "hosts": trace.hosts[:10] if trace is not None else [],
    }


def run_examples(directory: str, *, record: bool) -> int:
    """Run the examples and write a report; return the exit code.

    With ``record`` the inputs come from files or the predictor, each is run twice, and what is
    used is reported.
    """
    trace = UsageTrace()
    phase = "load"
    report: dict[str, Any] = {}
    try:
        predictor = load_predictor(read_json("predictor.json"))
        phase = "examples"
        schema = values.describe_predictor(predictor)
        if record:
            examples = read_examples(predictor, os.path.join(HERE, "examples"))
            inputs = [values.encode_value(value) for value in examples]
        else:
            inputs = [item["input"] for item in read_json("golden.json")["examples"]]
        phase = "predict"
        outputs = [_call_predict(predictor, value, schema) for value in inputs]
        report = {"schema": schema, "inputs": inputs, "outputs": outputs, "hosts": trace.hosts}
        if record:
            report["again"] = [_call_predict(predictor, value, schema) for value in inputs]
    except BaseException as error:  # also SystemExit: whatever the predictor does is reported
        report = {"error": describe_error(error, phase, trace)}
    files = trace.list_files()
    trace.stop()
    report["distributions"] = find_distributions(files if record else [])
    if record:
        report["system"] = find_system_packages(files)
        report["files"] = files
    write_report(directory, report)
    return 1 if "error" in report else 0


def _call_predict(predictor: Any, value: Any, schema: dict[str, Any]) -> Any:
    return values.encode_value(
        predictor.predict(**values.convert_input(values.decode_value(value), schema))
    )


def serve_stdin() -> int:
    """Answer one input; what the predictor prints goes to stderr."""
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        value = values.decode_json(sys.stdin.buffer.read())
        predictor = load_predictor(read_json("predictor.json"))
        schema = values.describe_predictor(predictor)
        result = predictor.predict(**values.convert_input(value, schema))
        text = json.dumps(values.encode_value(result, plain=True), allow_nan=False)
    except values.InvalidInputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with open(output, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    return 0


def main(args: list[str]) -> int:
    """Run the program."""
    if not args:
        return serve_stdin()
    if args == ["schema"]:
        print(json.dumps(read_json("golden.json")["schema"], indent=2))
        return 0
    if len(args) == 2 and args[0] in ("record", "replay"):
        return run_examples(args[1], record=args[0] == "record")
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main(sys.argv[1:]))
