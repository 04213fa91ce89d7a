"""Probes of what danlu can use but not every user needs: engines, clusters, mirrors, registries.

They run at the same time, and none can keep :func:`run_probes` waiting for longer than its limit:
a name server or a daemon that does not answer is a result like any other.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from urllib.parse import urlsplit

from danlu.engine.engine import EngineProgram
from danlu.engine.registry import find_engine, list_engine_names
from danlu.errors import DanluError, MachineError, UsageError
from danlu.graph.ops import Platform
from danlu.kube.kubeconfig import load_cluster_config
from danlu.oci.reference import Reference
from danlu.sandbox.emulation import host_platform, require_emulation
from danlu.sandbox.launcher.cgroup import find_writable_roots
from danlu.util.config import Configuration
from danlu.util.plugins import BrokenPlugin
from danlu.util.urls import mask_credentials

#: How long a probe waits for an answer of something else, in seconds.
_ANSWER_TIMEOUT = 3.0

#: How long all probes together may take, in seconds.
_PROBES_TIMEOUT = 8.0

_PORTS = {"http": 80, "https": 443, "ssh": 22, "tcp": 2375}

#: Variables with the address of a Python package index, the first that applies first.
_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")

#: What a probe found: whether it works, what it is, and what to do.
ProbeResult = tuple[bool, str, str]
Probe = Callable[[], ProbeResult]


def list_probes(config: Configuration, environ: Mapping[str, str]) -> dict[str, Probe]:
    """Return the probes by name, in the order of their results."""
    probes: dict[str, Probe] = {
        "cgroups": probe_cgroups,
        "ssh client": lambda: probe_program("ssh", ["-V"], "openssh-client"),
        "git": lambda: probe_program("git", ["--version"], "git"),
        "emulation": probe_emulation,
        **dict(_list_engine_probes(environ)),
        "Kubernetes": lambda: probe_cluster(config, environ),
    }
    for name, url in _list_servers(config, environ):
        probes[name] = lambda url=url: probe_server(url, environ)  # type: ignore[misc]
    if not config.registries and not config.kubernetes.registry:
        probes["registry"] = lambda: (True, "none configured", "")
    return probes


def run_probes(
    probes: Mapping[str, Probe], *, timeout: float = _PROBES_TIMEOUT
) -> dict[str, ProbeResult]:
    """Run all probes at once; what does not end within ``timeout`` seconds has failed."""
    results: dict[str, ProbeResult] = {}

    def work(name: str, probe: Probe) -> None:
        try:
            results[name] = probe()
        except DanluError as error:
            results[name] = (False, error.message, error.hint)
        except Exception as error:
            results[name] = (False, f"{type(error).__name__}: {error}", "")

    # Threads of a pool would be waited for when the program ends; a name server can take minutes.
    threads = [
        threading.Thread(target=work, args=item, daemon=True, name=f"probe {item[0]}")
        for item in probes.items()
    ]
    for thread in threads:
        thread.start()
    ended = threading.Event()
    timer = threading.Timer(timeout, ended.set)
    timer.daemon = True
    timer.start()
    for thread in threads:
        while thread.is_alive() and not ended.is_set():
            thread.join(0.05)
    timer.cancel()
    late = (False, f"no answer within {timeout:g} s", "")
    return {name: results.get(name, late) for name in probes}


def probe_cgroups() -> ProbeResult:
    """Find where limits of CPU and memory can be set."""
    roots = find_writable_roots("/proc/self")
    versions = {f"v{root.version}" for root in roots.values()}
    for descriptor in {root.descriptor for root in roots.values()}:
        os.close(descriptor)
    names = sorted(roots.keys() & {"cpu", "memory"})
    if len(names) == 2:
        return True, f"{' and '.join(sorted(versions))}: {', '.join(names)}", ""
    found = f"only {', '.join(names)}" if names else "no controller"
    fix = (
        "delegate them: `sudo systemctl edit user@.service` with [Service] "
        "Delegate=cpu cpuset io memory pids, then log in again"
    )
    return False, f"limits of CPU and memory do not apply: {found} can be used", fix


def probe_program(name: str, arguments: Sequence[str], package: str) -> ProbeResult:
    """Find a program and its version."""
    program = shutil.which(name)
    if program is None:
        return False, f"{name} is not installed", f"sudo apt-get install {package}"
    output = _run_program([program, *arguments])
    return True, output.splitlines()[0] if output else program, ""


def probe_emulation() -> ProbeResult:
    """Find out whether programs for the other processor can be executed."""
    other = "amd64" if host_platform().architecture == "arm64" else "arm64"
    platform = Platform("linux", other)
    require_emulation(platform, "run()")
    return True, f"{platform} can be executed", ""


def _list_engine_probes(environ: Mapping[str, str]) -> Iterator[tuple[str, Probe]]:
    for name in list_engine_names():
        try:
            program = find_engine(name).program
        except BrokenPlugin as error:
            broken = (False, error.message, error.hint)
            yield name, lambda broken=broken: broken  # type: ignore[misc]
            continue
        if program is not None:
            yield name.capitalize(), partial(probe_engine, program, environ)


def probe_engine(program: EngineProgram, environ: Mapping[str, str]) -> ProbeResult:
    """Ask the program of an engine for its version; its daemon may be on another machine."""
    try:
        return probe_program(program.name, program.version, program.package)
    except MachineError as error:
        remote = environ.get(program.address)
        hint = f"check {program.address} ({mask_credentials(remote)})" if remote else program.start
        return False, error.message, hint


def _run_program(command: Sequence[str]) -> str:
    """Return what the program writes; raises :class:`MachineError` if it fails or is too slow."""
    name = os.path.basename(command[0])
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MachineError(f"{name} did not answer within {_ANSWER_TIMEOUT:g} s") from error
    except OSError as error:
        raise MachineError(f"cannot start {name}: {error.strerror}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise MachineError(f"{name}: {lines[-1]}")
    return done.stdout.strip() or done.stderr.strip()


def probe_cluster(config: Configuration, environ: Mapping[str, str]) -> ProbeResult:
    """Connect to the API server of the configured context, without logging in."""
    context = config.kubernetes.context
    try:
        cluster = load_cluster_config(context=context, environ=environ)
    except UsageError as error:
        return False, error.message, error.hint or "set KUBECONFIG, or write ~/.kube/config"
    return probe_server(cluster.proxy or cluster.server, {} if cluster.proxy else environ)


def _list_servers(config: Configuration, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return what is configured to be reached: (name, URL)."""
    servers = [
        (f"mirror {name}", url) for name, mirror in config.mirrors.items() for url in mirror.urls
    ]
    servers += [("Python index", environ[name]) for name in _INDEX_VARIABLES if environ.get(name)]
    for name, registry in config.registries.items():
        scheme = "http" if registry.insecure else "https"
        servers.append((f"registry {name}", registry.mirror or f"{scheme}://{name}"))
    if config.kubernetes.registry:
        host = Reference.parse(f"{config.kubernetes.registry}/x").registry
        servers.append((f"registry {host}", f"https://{host}"))
    unique: dict[str, str] = {}
    for name, url in servers:
        while name in unique and unique[name] != url:
            name += "'"
        unique[name] = url
    return list(unique.items())


def probe_server(url: str, environ: Mapping[str, str]) -> ProbeResult:
    """Connect to the server of ``url``, or to the proxy that leads there. Sends nothing."""
    if "://" not in url:
        url = f"https://{url}"
    parts = urlsplit(url)
    if parts.scheme == "file":
        path = parts.path
        return (True, path, "") if os.path.isdir(path) else (False, f"{path} does not exist", "")
    proxy = _find_proxy(parts.scheme, parts.hostname or "", environ)
    via = f" through the proxy {mask_credentials(proxy)}" if proxy else ""
    target = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else parts
    host = target.hostname or ""
    shown = f"{mask_credentials(url)}{via}"
    if not host:  # an empty name would be this machine
        return False, f"invalid address: {shown}", "correct it in config.toml or the environment"
    try:
        port = target.port or _PORTS.get(target.scheme, 443)
        socket.create_connection((host, port), timeout=_ANSWER_TIMEOUT).close()
    except (OSError, ValueError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return False, f"cannot reach {shown}: {reason}", "check the network and HTTPS_PROXY"
    return True, f"{shown} answers", ""


def _find_proxy(scheme: str, host: str, environ: Mapping[str, str]) -> str:
    """Return the proxy for a host; those that ``NO_PROXY`` lists are reached directly."""
    names = [f"{scheme}_proxy", "all_proxy"]
    values = [environ.get(name) or environ.get(name.upper(), "") for name in names]
    direct = (environ.get("no_proxy") or environ.get("NO_PROXY", "")).split(",")
    for entry in (item.strip().lstrip(".") for item in direct):
        if entry == "*" or (entry and (host == entry or host.endswith(f".{entry}"))):
            return ""
    return next((value for value in values if value), "")
