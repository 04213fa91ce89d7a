"""Serve packed models in the background of this machine: each is an environment without a project.

Its supervisor keeps the server running. ``danlu ps`` lists it, too.
"""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator

import msgspec

from danlu.engine.contexts import Context
from danlu.engine.environment_directory import (
    EnvironmentDirectory,
    EnvironmentSpec,
    PortForward,
)
from danlu.engine.environment_ports import find_listener_conflict
from danlu.engine.settings import Settings
from danlu.environments.manage import (
    EnvironmentView,
    environment_image_tag,
    find_context_name,
    is_in_context,
    list_environment_views,
    read_environment_view,
    take_down,
)
from danlu.environments.spec import UpOptions
from danlu.environments.up import start_environment
from danlu.errors import StepFailed, UsageError
from danlu.graph.progress import Message, Progress
from danlu.image.manage import find_image
from danlu.oci.reference import Reference
from danlu.packing.serve_image import read_server_label, require_server
from danlu.packing.serve_options import ServeOptions, find_stop_seconds
from danlu.sandbox import userns
from danlu.serving import layout
from danlu.serving.cluster.manifests import check_name, choose_name
from danlu.serving.cluster.views import ServedModelView
from danlu.serving.model_servers import DANLU, ModelServer
from danlu.store import Store, StoredImage
from danlu.util.files import read_existing_file
from danlu.util.rotating_log import LogFollower
from danlu.util.sanitize import strip_control_sequences

#: Keeps the names of served models apart from those of projects' environments.
_PREFIX = "serve-"
_SERVICE = "serve"
_POLL_SECONDS = 0.1
_REQUEST_SECONDS = 2.0
_LOG_TAIL = 20
#: A server that ends more often does not start.
_MAX_RESTARTS = 2


def start_server(
    image: str, options: ServeOptions, *, settings: Settings, progress: Progress
) -> ServedModelView:
    """Serve a packed image in the background, and wait until it answers.

    One of the same name is replaced if it differs. If this is interrupted, the server that it has
    started is removed. Forks, so the process must not have other threads. Raises
    :class:`UsageError` if the image has no server or the port is taken, :class:`StepFailed` with
    the last lines of the log if the server ends; then it is removed.
    """
    name = check_name(options.name or choose_name(Reference.parse(image).repository))
    userns.run_inside(settings.paths, lambda: require_server(image, settings))
    options = _choose_port(options)
    environment = EnvironmentDirectory(settings.paths.environments / _name_environment(name))
    earlier = read_existing_file(environment.spec_file)
    try:
        return _start_and_wait(name, environment, image, options, settings, progress)
    except KeyboardInterrupt:
        if read_existing_file(environment.spec_file) not in (None, earlier):
            take_down(environment.name, settings, grace=0)
        raise


def _start_and_wait(
    name: str,
    environment: EnvironmentDirectory,
    image: str,
    options: ServeOptions,
    settings: Settings,
    progress: Progress,
) -> ServedModelView:
    if not _is_running(environment, image, options, settings):
        _require_free_port(environment, options)
        start_environment(
            None,
            settings=settings,
            options=UpOptions(
                name=environment.name,
                gpus=options.gpus,
                network="host",
                ports=(f"{options.host}:{options.port}:{options.port}",),
                recreate=True,
                grace=_find_stop_seconds(environment) if environment.exists() else 0,
                engine=settings.engine,
            ),
            progress=progress,
            image=image,
            keep=lambda runtime: msgspec.structs.replace(runtime, daemons=(options.command,)),
        )
    progress(Message(f"waiting for {name}", 0.0))
    return _wait_until_ready(name, environment, settings)


def _wait_until_ready(
    name: str, environment: EnvironmentDirectory, settings: Settings
) -> ServedModelView:
    while True:
        view = _build_view(read_environment_view(environment), settings)
        if view.state == "Ready":
            return view
        state = environment.read_state()
        restarts = max((service.restarts for service in state.services), default=0)
        if state.phase in ("Stopped", "Failed") or restarts > _MAX_RESTARTS:
            lines = tuple(_read_last_lines(environment))
            take_down(environment.name, settings)
            raise StepFailed(
                f"{name} does not start: {view.reason or 'the server ended'}",
                code=1,
                details=lines,
            )
        time.sleep(_POLL_SECONDS)


def _name_environment(name: str) -> str:
    return f"{_PREFIX}{name}"[:63].rstrip("-")


def _choose_port(options: ServeOptions) -> ServeOptions:
    host = "127.0.0.1" if options.host == "localhost" else options.host
    port = options.port
    if port == 0:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
            port = probe.getsockname()[1]
    return msgspec.structs.replace(options, host=host, port=port)


def _is_running(
    environment: EnvironmentDirectory, image: str, options: ServeOptions, settings: Settings
) -> bool:
    """Return whether the same server already runs."""
    if not environment.exists() or not environment.is_running():
        return False
    spec = environment.read_spec()
    with Store.open(settings.paths.store) as store:
        digest = find_image(store, image).digest
    commands = [service.args for service in spec.services]
    return (spec.image, spec.gpus, spec.engine, commands) == (
        *(digest, options.gpus, settings.engine),
        [options.command],
    )


def _require_free_port(environment: EnvironmentDirectory, options: ServeOptions) -> None:
    """Raise :class:`UsageError` if another program than the earlier version has the port."""
    if environment.exists() and environment.is_running():
        ports = [port.host_port for port in environment.read_spec().ports]
        if options.port in ports:
            return
    conflict = find_listener_conflict(PortForward(options.port, options.port, options.host))
    if conflict:
        raise UsageError(
            f"cannot listen on {options.host}:{options.port}: {conflict}",
            hint="choose another port with --port, or a free one with --port 0",
        )


# -- list, read and remove ------------------------------------------------------------------------


def list_servers(
    settings: Settings, named: tuple[str, Context] | None = None
) -> Iterator[ServedModelView]:
    """Yield the served models of this machine by name; those of one context if it is given."""
    for view in list_environment_views(settings.paths):
        if not isinstance(view, EnvironmentView) or not _is_server(view.spec):
            continue
        if named is None or is_in_context(view.spec, named, settings.paths):
            yield _build_view(view, settings)


def find_served_model(name: str, settings: Settings) -> EnvironmentDirectory:
    """Return the environment of a served model; raise :class:`UsageError` if none has the name."""
    environment = EnvironmentDirectory(settings.paths.environments / _name_environment(name))
    if "/" not in name and environment.exists() and _is_server(environment.read_spec()):
        return environment
    names = [view.name for view in list_servers(settings)]
    raise UsageError(
        f"no served model {name} on this machine",
        hint=f"served here: {', '.join(names)}" if names else "`danlu serve REF -d` starts one",
    )


def read_server(name: str, settings: Settings) -> ServedModelView:
    """Return what is known of a served model of this machine."""
    return _build_view(read_environment_view(find_served_model(name, settings)), settings)


def remove_server(name: str, settings: Settings) -> None:
    """Stop a served model of this machine, which answers the requests that it has, and remove it.

    Forks, so the process must not have other threads.
    """
    environment = find_served_model(name, settings)
    take_down(environment.name, settings, grace=_find_stop_seconds(environment))


def _find_stop_seconds(environment: EnvironmentDirectory) -> float:
    return max(find_stop_seconds(service.args) for service in environment.read_spec().services)


def follow_server_log(
    name: str, settings: Settings, *, follow: bool = False, tail: int | None = None
) -> Iterator[bytes]:
    """Yield the output of a served model of this machine; with ``follow`` until it is removed."""
    environment = find_served_model(name, settings)
    follower = LogFollower(environment.log_file(_SERVICE), tail=tail)
    while True:
        if data := follower.read():
            yield data
        if not follow or not environment.exists():
            return
        time.sleep(_POLL_SECONDS)


def _is_server(spec: EnvironmentSpec) -> bool:
    has_server = any(service.args[:1] == (layout.SERVE,) for service in spec.services)
    return spec.name.startswith(_PREFIX) and has_server and not spec.project and bool(spec.ports)


def _build_view(view: EnvironmentView, settings: Settings) -> ServedModelView:
    spec, state = view.spec, view.state
    (port, *_) = spec.ports
    is_running = state.phase == "Running"
    image = _find_image(spec.image, settings)
    ready = is_running and _is_server_ready(port, read_server_label(image) if image else DANLU)
    reason = state.reason
    for service in state.services:
        if not ready and (service.restarts or not service.running):
            ended = f"exit code {service.exit_code}" if service.exit_code is not None else ""
            reason = service.reason or (f"the server ended: {ended}" if ended else reason)
    host = f"[{port.address}]" if ":" in port.address else port.address
    return ServedModelView(
        name=spec.name.removeprefix(_PREFIX),
        namespace="",
        kind=find_context_name(spec),
        image=_choose_image_name(image) or spec.image.rpartition(":")[2][:12],
        state="Ready" if ready else "NotReady" if is_running else state.phase,
        ready=int(ready),
        replicas=1,
        url=f"http://{host}:{port.host_port}",
        reason="" if ready else reason,
        created=spec.created,
    )


def _is_server_ready(port: PortForward, server: ModelServer) -> bool:
    """Return whether the server at a port is ready."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(port.address, port.address)
    connection = http.client.HTTPConnection(address, port.host_port, timeout=_REQUEST_SECONDS)
    try:
        connection.request("GET", server.ready_path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _find_image(digest: str, settings: Settings) -> StoredImage | None:
    with Store.open(settings.paths.store) as store:
        return store.image(digest)


def _choose_image_name(image: StoredImage | None) -> str:
    """Return the first name that the user gave an image; empty if it has no name."""
    own = environment_image_tag("").partition(":")[0]
    names = image.names if image is not None else ()
    return next((name for name in names if not name.startswith(own)), "")


def _read_last_lines(environment: EnvironmentDirectory) -> list[str]:
    data = LogFollower(environment.log_file(_SERVICE), tail=_LOG_TAIL).read()
    text = data.decode(errors="replace")
    return [strip_control_sequences(line) for line in text.splitlines()]
