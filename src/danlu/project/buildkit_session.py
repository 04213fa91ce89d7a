"""Connect a build to BuildKit: to the daemon that is configured, or to one in a pod."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from danlu.builder.buildkit.buildctl import BuildctlClient
from danlu.builder.buildkit.pod import PodOptions, run_buildkit_pod
from danlu.builder.buildkit.sandbox import BuildKitSession
from danlu.graph.ops import Platform
from danlu.graph.progress import Message
from danlu.kube.kubeconfig import load_cluster_config
from danlu.project.build_request import BuildRequest
from danlu.store import Store
from danlu.util.human import parse_duration


@asynccontextmanager
async def open_session(
    request: BuildRequest, platform: Platform, store: Store
) -> AsyncGenerator[BuildKitSession]:
    """Yield a session for one build; it connects when a step has to run."""
    with store.staging() as work:
        session = BuildKitSession(
            partial(_connect_daemon, request),
            store,
            work,
            platform=(platform.os, platform.architecture),
            import_cache=request.options.cache_from,
            fresh=request.options.no_cache,
            trusted=request.options.trusted,
        )
        async with session:
            yield session


@asynccontextmanager
async def _connect_daemon(request: BuildRequest) -> AsyncGenerator[BuildctlClient]:
    """Yield the client of the daemon that ``BUILDKIT_HOST`` names, or of one in a pod."""
    directory = request.settings.config.buildkit_tls_dir
    client = BuildctlClient(tls_directory=directory)
    if request.builder == "buildkit":
        yield client
        return
    settings = request.settings.config.kubernetes
    options = PodOptions(
        settings.builder_image,
        privileged=settings.builder_privileged,
        idle_seconds=round(parse_duration(settings.builder_idle or "0s")),
        context=settings.context,
        namespace=settings.namespace,
        pull_secret=settings.image_pull_secret,
    )

    def report(text: str) -> None:
        request.progress(Message(text, time.monotonic() - request.started))

    cluster = load_cluster_config(context=settings.context)
    async with run_buildkit_pod(options, cluster, report) as address:
        yield BuildctlClient(address)
