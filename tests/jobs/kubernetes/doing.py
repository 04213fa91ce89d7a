"""A kubelet's hands for small programs: what a pod's main container says is run, here and for real.

Volumes of ConfigMaps are laid out as a kubelet does it (a hidden directory with a name of the time,
and links into it), and every path of the container that is a mount is one below a directory of the
test.
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

__all__ = ["Done", "do"]

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Done:
    """How a container ended: its exit code, its log, its last word, its working directory."""

    code: int
    log: str
    message: str
    directory: Path


def do(
    pod: Object,
    config_maps: Mapping[str, Object],
    root: Path,
    *,
    secrets: Mapping[str, Object] | None = None,
) -> Done:
    """Run the first container of ``pod``; its mounts and its last word are below ``root``."""
    main = pod["spec"]["containers"][0]
    mounts = _mounted(pod, main, config_maps, root, secrets or {})
    last_word = root / "termination-log"
    mounts["/dev/termination-log"] = last_word
    words = [_placed(one, mounts) for one in (*main.get("command", ()), *main.get("args", ()))]
    environment = _environment(pod, main, mounts)
    words = [_expanded(one, environment) for one in words]
    if words[0] == "python":
        words[0] = sys.executable
    directory = mounts.get(main.get("workingDir", ""), root)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    ran = subprocess.run(
        words,
        cwd=directory,
        env={"PATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=30,
        check=False,
    )
    message = last_word.read_text() if last_word.exists() else ""
    return Done(ran.returncode, ran.stdout.decode(), message, directory)


def _mounted(
    pod: Object,
    container: Object,
    config_maps: Mapping[str, Object],
    root: Path,
    secrets: Mapping[str, Object],
) -> dict[str, Path]:
    volumes = {one["name"]: one for one in pod["spec"].get("volumes", ())}
    found = {}
    for mount in container.get("volumeMounts", ()):
        place = root / mount["name"]
        place.mkdir(parents=True, exist_ok=True)
        volume = volumes[mount["name"]]
        if "configMap" in volume:
            _lay_out(volume["configMap"], config_maps, place)
        elif "secret" in volume:
            for key, text in secrets[volume["secret"]["secretName"]]["data"].items():
                (place / key).write_bytes(base64.b64decode(text))
        found[mount["mountPath"]] = place
    for file in root.rglob("call.json"):
        # The only file that names a path of the container.
        text = _placed(file.read_text(), found)
        file.chmod(0o644)
        file.write_text(text)
    return found


def _lay_out(volume: Object, config_maps: Mapping[str, Object], place: Path) -> None:
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
    for one in hidden.iterdir():
        os.symlink(f"..data/{one.name}", place / one.name)


def _environment(pod: Object, container: Object, mounts: Mapping[str, Path]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in container.get("env", ()):
        if "valueFrom" in one:
            path = one["valueFrom"]["fieldRef"]["fieldPath"]
            key = path.partition("['")[2].rpartition("']")[0]
            found[one["name"]] = pod["metadata"]["labels"][key]
        else:
            value = _placed(str(one.get("value", "")), mounts)
            found[one["name"]] = _expanded(value, found)
    return found


def _placed(text: str, mounts: Mapping[str, Path]) -> str:
    for path in sorted(mounts, key=len, reverse=True):
        text = text.replace(path, str(mounts[path]))
    return text


def _expanded(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"$({name})", value)
    return text
