"""This machine: its description, and how its builds reach packages."""

from __future__ import annotations

import configparser
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SYSTEM_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


def which(program: str) -> str | None:
    """Return the path of ``program``, also in the system's directories."""
    return shutil.which(program, path=SYSTEM_PATH)


def output(*command: str) -> str:
    """Return the output of ``command``; empty if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


@dataclass(frozen=True)
class MachineConfiguration:
    """Configuration for builds on this machine to reach packages; never written to a result."""

    apt_sources: tuple[str, ...]
    apt_options: str
    pip: dict[str, str]
    directories: tuple[str, ...]

    @property
    def pip_conf(self) -> str:
        """The content of ``/etc/pip.conf`` for containers."""
        parser = configparser.RawConfigParser()
        parser["global"] = self.pip
        text = io.StringIO()
        parser.write(text)
        return text.getvalue()

    @property
    def uv(self) -> dict[str, str]:
        """The same as variables for uv, which does not read pip's files."""
        names = {
            "index-url": "UV_DEFAULT_INDEX",
            "extra-index-url": "UV_INDEX",
            "find-links": "UV_FIND_LINKS",
        }
        variables = {names[key]: f'"{value}"' for key, value in self.pip.items() if key in names}
        return {
            **variables,
            "SSL_CERT_FILE": CERTIFICATES,
            "UV_INDEX_STRATEGY": "unsafe-best-match",
        }


@cache
def configuration() -> MachineConfiguration:
    """Return the configuration that apt and pip report, without local indexes, which are large."""
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    form = "deb $(REPO_URI) $(RELEASE) $(COMPONENT)"
    targets = output("apt-get", "indextargets", "--format", form, "Created-By: Packages")
    sources = {line for line in targets.splitlines() if line.split()[2].startswith(codename)}
    wanted = ("Acquire::Check", "Acquire::http", "Acquire::Retries", "Acquire::Proxy")
    options = [o for o in output("apt-config", "dump").splitlines() if o.startswith(wanted)]
    pip: dict[str, str] = {}
    for line in output(sys.executable, "-m", "pip", "config", "list").splitlines():
        key, _, value = line.partition("=")
        key = key.rpartition(".")[2].strip()
        kept = [part for part in value.strip("'\"").split() if not part.startswith("file:")]
        if kept and key in {"index-url", "extra-index-url", "find-links", "trusted-host"}:
            pip[key] = " ".join(kept)
    pip["cert"] = CERTIFICATES
    directories = tuple(p for p in pip.get("find-links", "").split() if Path(p).is_dir())
    return MachineConfiguration(tuple(sorted(sources)), "\n".join(options) + "\n", pip, directories)


def description(versions: dict[str, str]) -> dict[str, str]:
    """Return a description of the machine for a page of results."""
    with open("/proc/cpuinfo") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": output("git", "rev-parse", "--short", "HEAD"),
        "processor": f"{os.cpu_count()} x {models[0] if models else platform.machine()}",
        "memory": f"{memory:.0f} GiB",
        "file system": output("stat", "-f", "-c", "%T", "."),
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", ""),
        "load before": "{:.2f} {:.2f} {:.2f}".format(*os.getloadavg()),
        **versions,
    }


def layer_sizes(layout: Path) -> dict[str, int]:
    """Return the sizes of all layers in an OCI layout, by digest."""

    def blob(digest: str) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(
            (layout / "blobs" / digest.replace(":", "/")).read_bytes()
        )
        return loaded

    sizes: dict[str, int] = {}
    pending: list[dict[str, Any]] = [json.loads((layout / "index.json").read_bytes())]
    while pending:
        document = pending.pop()
        sizes.update((layer["digest"], layer["size"]) for layer in document.get("layers", ()))
        pending += [blob(entry["digest"]) for entry in document.get("manifests", ())]
    return sizes
