"""The order of a build: base, system packages, Python, other declarations, configuration, steps.

Pure: an environment and its lock in, a graph out; also for a build function together with those
that it copies from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from danlu.assemble.conda import make_conda_vertices, make_interpreter_vertex
from danlu.assemble.python import make_package_vertices, make_venv_vertex, make_wheel_vertices
from danlu.environment.image_layout import CONDA_PREFIX, HOME, USER_ID, USER_NAME, VENV
from danlu.environment.lock import FunctionLock
from danlu.environment.requirements import (
    list_system_packages,
    needs_python,
    requested_python_version,
)
from danlu.environment.types import (
    Environment,
    GraphContext,
    ImageOwner,
    ProjectDigests,
    PythonInterpreter,
    UvTool,
)
from danlu.errors import Span
from danlu.graph.image_config import ImageConfig
from danlu.graph.ops import (
    AddUser,
    AptInstall,
    Bootstrap,
    CopyImage,
    Files,
    ForeignAptInstall,
    ForeignBootstrap,
    ImageSource,
    Merge,
    Op,
    OwnDirectories,
    Platform,
    ShellStartup,
    Unresolved,
    parse_platform,
)
from danlu.graph.types import Graph, Vertex

_MAX_NAMES_SHOWN = 4


def assemble(
    environment: Environment,
    lock: FunctionLock | None,
    digests: ProjectDigests | None = None,
    *,
    platform: Platform | None = None,
    tools: FunctionLock | None = None,
    sources: Mapping[str, Vertex] = MappingProxyType({}),
) -> Graph:
    """Return the build graph of an environment under its lock.

    ``sources`` are the results that its steps copy files of, by target. ``tools`` is the lock for
    this machine's platform if ``platform`` is another one: the programs of that system configure
    the packages of the foreign one.

    Without a lock, what a lock would pin is an ``Unresolved`` vertex: such a graph can be shown,
    but not built.
    """
    platform = platform or Platform()
    context = GraphContext(
        environment, lock, digests or ProjectDigests(), platform, sources=sources
    )
    system = _make_native_or_foreign_system(environment, lock, platform, tools)
    toolchains = _make_toolchain_vertices(environment, lock)
    below = _merge_vertices([system, *toolchains])
    wheels = make_wheel_vertices(environment, lock, below, context.digests.copies)
    context = replace(context, system=system, wheels=wheels)
    leaves = _make_leaves(context, below)
    root = _merge_vertices([_make_user_vertex(context, system), *toolchains, *leaves])
    for step in environment.steps:
        root = step.add_to(root, context)
    return Graph(
        root=_make_owner_vertex(context, root),
        config=_make_image_config(context),
        platform=platform,
        epoch=context.epoch,
    )


def assemble_system(
    environment: Environment,
    lock: FunctionLock,
    platform: Platform,
    tools: FunctionLock | None = None,
) -> Graph:
    """Return the graph of the base with system packages and toolchains: where wheels are built.

    ``tools`` is as in :func:`assemble`.
    """
    root = _make_toolchain_stack(environment, lock, platform, tools)
    return Graph(root=root, config=ImageConfig(), platform=platform, epoch=lock.base.epoch)


def _make_toolchain_stack(
    environment: Environment,
    lock: FunctionLock,
    platform: Platform,
    tools: FunctionLock | None,
) -> Vertex:
    """Return the base with its system packages, conda packages and a standalone Python."""
    system = _make_native_or_foreign_system(environment, lock, platform, tools)
    return _merge_vertices([system, *_make_toolchain_vertices(environment, lock)])


def _make_toolchain_vertices(
    environment: Environment, lock: FunctionLock | None
) -> tuple[Vertex, ...]:
    conda = tuple(make_conda_vertices(environment, lock))
    if lock is None or lock.python is None or lock.python.archive is None:
        return conda
    declared = environment.python or environment.find(UvTool)
    span = declared.span if declared else None
    return (*conda, make_interpreter_vertex(lock.python.archive, span))


def _make_native_or_foreign_system(
    environment: Environment,
    lock: FunctionLock | None,
    platform: Platform,
    tools: FunctionLock | None,
) -> Vertex:
    """Return the base with its system packages, configured by the programs of ``tools`` if any."""
    base = _make_base_vertex(environment, lock, platform)
    if lock is None or tools is None:
        return _make_system_vertex(environment, lock, base)
    native_base = _make_base_vertex(environment, tools, parse_platform(tools.platform))
    native_base = _name_tools(native_base, tools)
    if isinstance(base.op, Bootstrap):
        base = _make_foreign_vertex(ForeignBootstrap, base, (native_base,))
    system = _make_system_vertex(environment, lock, base)
    if not isinstance(system.op, AptInstall):
        return system
    native = _name_tools(_make_system_vertex(environment, tools, native_base), tools)
    return _make_foreign_vertex(ForeignAptInstall, system, (base, native))


def _name_tools(vertex: Vertex, tools: FunctionLock) -> Vertex:
    return dataclasses.replace(vertex, name=f"{vertex.name} for {tools.platform}")


def _make_foreign_vertex(kind: type[Op], vertex: Vertex, inputs: tuple[Vertex, ...]) -> Vertex:
    """Return ``vertex`` with its op as ``kind``, a subclass of the op's class."""
    op = kind(**{name: getattr(vertex.op, name) for name in vertex.op.__struct_fields__})
    return dataclasses.replace(vertex, op=op, inputs=inputs)


def _make_base_vertex(
    environment: Environment, lock: FunctionLock | None, platform: Platform
) -> Vertex:
    base = environment.base
    label = base.os or base.image
    if lock is None:
        op = Unresolved("base", (label,))
        return Vertex(op, name=f"base {label}", branch="base", spans=(base.span,))
    if lock.base.image is not None:
        image = lock.base.image
        source = ImageSource(image.reference, image.digest, platform)
        name = f"image {image.reference}"
        return Vertex(source, name=name, branch="base", spans=(base.span,))
    bootstrap = Bootstrap(
        distribution=lock.base.distribution,
        codename=lock.base.codename,
        packages=lock.base.packages,
        epoch=lock.base.epoch,
    )
    name = f"base {label} ({len(lock.base.packages)} packages)"
    return Vertex(bootstrap, name=name, branch="base", spans=(base.span,))


def _make_system_vertex(
    environment: Environment, lock: FunctionLock | None, below: Vertex
) -> Vertex:
    """Return ``below`` with the system packages, or ``below`` itself if there are none."""
    spans = _find_system_spans(environment)
    if lock is None:
        names = list(list_system_packages(environment))
        if needs_python(environment) and not environment.base.image:
            names.append(f"python{requested_python_version(environment)}")
        if not names:
            return below
        op = Unresolved("system packages", tuple(names))
        return Vertex(op, (below,), _make_apt_label(names), "system", spans)
    if lock.system is None or not lock.system.packages:
        return below
    install = AptInstall(
        packages=lock.system.packages,
        requested=lock.system.requested,
        epoch=lock.base.epoch,
        codename=lock.base.codename,
    )
    return Vertex(install, (below,), _make_apt_label(lock.system.requested), "system", spans)


def _make_apt_label(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else ""
    return "apt " + ", ".join(names[:_MAX_NAMES_SHOWN]) + more


def _find_system_spans(environment: Environment) -> tuple[Span, ...]:
    """Return the lines that ask for system packages, or for an interpreter made of them."""
    spans = [
        declaration.span
        for declaration in (environment.base, *environment.declarations)
        if declaration.system_packages() or isinstance(declaration, (PythonInterpreter, UvTool))
    ]
    return tuple(sorted(span for span in spans if span.line))


def _make_user_vertex(context: GraphContext, below: Vertex) -> Vertex:
    """Return ``below`` with the user of ``base(dev=True)`` or ``config.owner``, if there is one."""
    environment, owner = context.environment, context.environment.find(ImageOwner)
    is_root = owner is None or owner.uid == 0
    if is_root and not environment.base.dev:
        return below
    add_user = AddUser(
        name=USER_NAME,
        uid=USER_ID if owner is None or is_root else owner.uid,
        gid=USER_ID if owner is None or is_root else owner.gid,
        home=HOME,
        shell=dict(_make_image_config(context).environment).get("SHELL", "/bin/bash"),
        epoch=context.epoch,
        groups=("sudo",) if environment.base.dev else (),
        sudo=environment.base.dev,
    )
    spans = tuple(item.span for item in (environment.base, owner) if item and item.span.line)
    return Vertex(add_user, (below,), f"user {USER_NAME}", "system", spans)


def _make_owner_vertex(context: GraphContext, below: Vertex) -> Vertex:
    """Return ``below`` with the directories of packages given to the user of ``config.owner``.

    Last, because steps may install packages too.
    """
    owner, lock = context.environment.find(ImageOwner), context.lock
    if owner is None or owner.uid == 0 or lock is None:
        return below
    roots = [VENV] if context.python is not None else []
    roots += [CONDA_PREFIX] if lock.conda is not None and lock.conda.packages else []
    if not roots:
        return below
    op = OwnDirectories(tuple(roots), owner.uid, owner.gid, context.epoch)
    name = f"directories of packages for user {USER_NAME}"
    return Vertex(op, (below,), name, "steps", (owner.span,) if owner.span.line else ())


def _make_leaves(context: GraphContext, system: Vertex) -> Sequence[Vertex]:
    """Return what goes over the system packages; ``system`` is where wheels are built."""
    leaves: list[Vertex] = []
    if context.python is not None:
        sees_base = context.python.provider != "apt"
        leaves.append(make_venv_vertex(context.python, context.epoch, visible_base=sees_base))
    copies = context.digests.copies
    leaves.extend(make_package_vertices(context.environment, context.lock, system, copies))
    for declaration in context.environment.list_by_rank():
        leaves.extend(declaration.vertices(context))
    config = _make_config_vertex(context)
    leaves.extend([config] if config else [])
    return [*leaves, _make_startup_vertex(context)]


def _make_startup_vertex(context: GraphContext) -> Vertex:
    """Return what gives login shells the image's variables."""
    assert context.system is not None
    config = _make_image_config(context)
    startup = ShellStartup(config.environment, config.path, context.epoch)
    return Vertex(startup, (context.system,), name="shell startup files", branch="config")


def _make_config_vertex(context: GraphContext) -> Vertex | None:
    """Return one layer with the configuration files of all declarations, if there are any."""
    declaring = [item for item in context.environment.list_by_rank() if item.config_files()]
    # The order of the files is part of the digest, and the order of declarations must not be.
    declaring.sort(key=lambda item: (item.rank, item.config_files()[0].path))
    entries = tuple(entry for item in declaring for entry in item.config_files())
    if not entries:
        return None
    name = "write " + ", ".join(entry.path for entry in entries)
    spans = tuple(item.span for item in declaring)
    return Vertex(Files(entries, context.epoch), name=name, branch="config", spans=spans)


def _merge_vertices(vertices: Sequence[Vertex]) -> Vertex:
    if len(vertices) == 1:
        return vertices[0]
    return Vertex(Merge(), tuple(vertices), name="environment", branch="environment")


def _make_image_config(context: GraphContext) -> ImageConfig:
    config = ImageConfig(
        environment=tuple(sorted(context.variables().items())),
        path=context.path(),
        working_directory="",
    )
    for declaration in context.environment.list_by_rank():
        config = declaration.configure(config)
    return config


#: Makes the graph of a target for a platform from the results of its sources.
MakeGraph = Callable[["Target", Platform, Mapping[str, Vertex]], Graph]


class Target(msgspec.Struct, frozen=True):
    """A function with its arguments (``name``), and what its graph is made of.

    ``tools`` is as in :func:`danlu.assemble.assemble.assemble`.
    """

    name: str
    environment: Environment
    lock: FunctionLock | None
    digests: ProjectDigests
    tools: FunctionLock | None = None


class TargetGraph(msgspec.Struct, frozen=True):
    """The graph of the last target, with those of the others in it.

    ``vertices`` are the digests of each target's own vertices: those that are not in its sources.
    A vertex of several targets belongs to the one that is built, else to the first.
    """

    graph: Graph
    vertices: Mapping[str, frozenset[str]]


def assemble_targets(
    targets: Sequence[Target],
    platform: Platform,
    make_graph: MakeGraph | None = None,
) -> TargetGraph:
    """Return the graph of the last of ``targets``; the others come after their own sources.

    The vertices that only others have get the target's name in front of theirs. ``make_graph``
    replaces :func:`~danlu.assemble.assemble.assemble`.
    """
    make_graph = make_graph or _assemble_target
    graphs = _assemble_in_order(targets, platform, make_graph, {})
    main = targets[-1].name
    if len(targets) == 1:
        return TargetGraph(graphs[main], {main: frozenset(v.digest for v in graphs[main].walk())})
    vertices: dict[str, frozenset[str]] = {}
    taken: set[str] = set()
    for target in (targets[-1], *targets[:-1]):
        roots = {graphs[name].root.digest for name in _list_sources(target)}
        own = {vertex.digest for vertex in _walk_own(graphs[target.name].root, roots)}
        vertices[target.name] = frozenset(own - taken)
        taken |= own
    # Names are not part of a digest, so the same graphs are made with other names.
    labels = {
        digest: name for name, digests in vertices.items() if name != main for digest in digests
    }
    return TargetGraph(_assemble_in_order(targets, platform, make_graph, labels)[main], vertices)


def _assemble_target(target: Target, platform: Platform, sources: Mapping[str, Vertex]) -> Graph:
    return assemble(
        target.environment,
        target.lock,
        target.digests,
        platform=platform,
        tools=target.tools,
        sources=sources,
    )


def _assemble_in_order(
    targets: Sequence[Target],
    platform: Platform,
    make_graph: MakeGraph,
    labels: Mapping[str, str],
) -> dict[str, Graph]:
    """Return the graph of each target; ``labels`` go in front of the names of vertices."""
    graphs: dict[str, Graph] = {}
    roots: dict[str, Vertex] = {}
    for target in targets:
        graphs[target.name] = make_graph(target, platform, roots)
        roots[target.name] = _label_vertex(graphs[target.name].root, labels, {})
    return graphs


def _list_sources(target: Target) -> set[str]:
    return {step.source_target() for step in target.environment.steps} - {""}


def _walk_own(root: Vertex, sources: set[str]) -> Iterator[Vertex]:
    """Yield the vertices of a graph without those below the results that it copies from."""
    seen: set[str] = set()
    pending = [root]
    while pending:
        vertex = pending.pop()
        if vertex.digest in seen:
            continue
        seen.add(vertex.digest)
        yield vertex
        is_copy = isinstance(vertex.op, CopyImage)
        pending += (item for item in vertex.inputs if not is_copy or item.digest not in sources)


def _label_vertex(vertex: Vertex, labels: Mapping[str, str], done: dict[str, Vertex]) -> Vertex:
    if vertex.digest not in done:
        inputs = tuple(_label_vertex(below, labels, done) for below in vertex.inputs)
        label = labels.get(vertex.digest, "")
        name = vertex.name
        if label and not name.startswith(f"{label}: "):
            name = f"{label}: {name}"
        done[vertex.digest] = dataclasses.replace(vertex, inputs=inputs, name=name)
    return done[vertex.digest]
