"""Run the main container of a pod as a process, like a minimal kubelet.

Volumes of ConfigMaps have a kubelet's layout (a hidden directory named after the time, and links to
its content). Each mount path of the container is replaced by a path below a test's directory.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["PodRun", "run_pod"]

Object = Mapping[str, Any]


@dataclass(frozen=True)
class PodRun:
    """A finished container: exit code, log, termination message and working directory."""

    code: int
    log: str
    message: str
    directory: Path


def run_pod(
    pod: Object,
    config_maps: Mapping[str, Object],
    root: Path,
    *,
    secrets: Mapping[str, Object] | None = None,
) -> PodRun:
    """Run the first container of ``pod`` with its mounts and termination log below ``root``."""
    main = pod["spec"]["containers"][0]
    root.mkdir(parents=True, exist_ok=True)
    mounts = _create_mounts(pod, main, config_maps, root, secrets or {})
    termination_log = root / "termination-log"
    mounts["/dev/termination-log"] = termination_log
    words = [
        _replace_mounts(word, mounts) for word in (*main.get("command", ()), *main.get("args", ()))
    ]
    environment = _build_env(pod, main, mounts)
    words = [_expand_references(word, environment) for word in words]
    if words[0] == "python":
        words[0] = sys.executable
    directory = mounts.get(main.get("workingDir", ""), root)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    process = subprocess.run(
        words,
        cwd=directory,
        env={"PATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
    message = termination_log.read_text() if termination_log.exists() else ""
    return PodRun(process.returncode, process.stdout.decode(), message, directory)


def _create_mounts(
    pod: Object,
    container: Object,
    config_maps: Mapping[str, Object],
    root: Path,
    secrets: Mapping[str, Object],
) -> dict[str, Path]:
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
    results = {}
    for mount in container.get("volumeMounts", ()):
        directory = root / mount["name"]
        directory.mkdir(parents=True, exist_ok=True)
        volume = volumes[mount["name"]]
        if "configMap" in volume:
            _write_config_map(volume["configMap"], config_maps, directory)
        elif "secret" in volume:
            for key, text in secrets[volume["secret"]["secretName"]]["data"].items():
                (directory / key).write_bytes(base64.b64decode(text))
        results[mount["mountPath"]] = directory
    for file in root.rglob("call.json"):
        # The only file that contains a path of the container.
        text = _replace_mounts(file.read_text(), results)
        file.chmod(0o644)
        file.write_text(text)
    return results


def _write_config_map(volume: Object, config_maps: Mapping[str, Object], place: Path) -> None:
    document = config_maps[volume["name"]]
    plain = {key: text.encode() for key, text in (document.get("data") or {}).items()}
    binary = {
        key: base64.b64decode(text) for key, text in (document.get("binaryData") or {}).items()
    }
    content = plain | binary
    hidden = place / "..2026_01_01"
    for item in volume["items"]:
        file = hidden / item["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content[item["key"]])
        file.chmod(item["mode"])
    os.symlink(hidden.name, place / "..data")
    for path in hidden.iterdir():
        os.symlink(f"..data/{path.name}", place / path.name)


def _build_env(pod: Object, container: Object, mounts: Mapping[str, Path]) -> dict[str, str]:
    results: dict[str, str] = {}
    for entry in container.get("env", ()):
        if "valueFrom" in entry:
            path = entry["valueFrom"]["fieldRef"]["fieldPath"]
            key = path.partition("['")[2].rpartition("']")[0]
            results[entry["name"]] = pod["metadata"]["labels"][key]
        else:
            value = _replace_mounts(str(entry.get("value", "")), mounts)
            results[entry["name"]] = _expand_references(value, results)
    return results


def _replace_mounts(text: str, mounts: Mapping[str, Path]) -> str:
    for path in sorted(mounts, key=len, reverse=True):
        text = text.replace(path, str(mounts[path]))
    return text


def _expand_references(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"$({name})", value)
    return text
