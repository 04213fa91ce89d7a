"""Encode LLB, BuildKit's build graph (``solver/pb/ops.proto``), as protocol buffers.

Only what :mod:`~danlu.builder.buildkit.sandbox` needs, and only encoding: that takes four wire
rules, so generated code and a protobuf runtime would be more to maintain. Fields are written in the
order of their numbers and maps by key, so that equal graphs have equal digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

#: No input or no output of a mount (pb.Empty, pb.SkipOutput).
_NONE = -1
_MOUNT_TYPES = {"bind": 0, "secret": 1, "ssh": 2, "tmpfs": 4}
#: NetMode: the daemon's default network, or only a loopback.
_NETWORK_DEFAULT, _NETWORK_NONE = 0, 2


class LlbVertex(msgspec.Struct, frozen=True):
    """An encoded ``Op`` with the vertices that its inputs come from.

    ``name`` is shown in progress and is not part of the digest; ``fresh`` ignores the cache.
    """

    op: bytes
    inputs: tuple[LlbVertex, ...] = ()
    name: str = ""
    fresh: bool = False

    @property
    def digest(self) -> str:
        """The digest by which other ops refer to this one."""
        return "sha256:" + hashlib.sha256(self.op).hexdigest()


class VertexOutput(msgspec.Struct, frozen=True):
    """One of the results of a vertex; :func:`make_exec` has one for each writable mount."""

    vertex: LlbVertex
    index: int = 0


class ExecMount(msgspec.Struct, frozen=True):
    """A mount of an ``ExecOp``.

    ``bind`` shows ``source``, or its ``selector``; ``secret`` and ``ssh`` show what the client
    calls ``id``, owned by ``uid`` and ``gid`` with ``mode``.
    """

    target: str
    kind: Literal["bind", "secret", "ssh", "tmpfs"] = "bind"
    source: VertexOutput | None = None
    selector: str = ""
    readonly: bool = False
    id: str = ""
    uid: int = 0
    gid: int = 0
    mode: int = 0o400


def make_source(identifier: str, attributes: Mapping[str, str], *, name: str = "") -> LlbVertex:
    """Return a ``SourceOp``, such as ``oci-layout://…``."""
    source = _encode_text(1, identifier) + _encode_text_map(2, attributes)
    return LlbVertex(_encode_message(3, source), name=name)


def make_exec(
    args: Sequence[str],
    mounts: Sequence[ExecMount],
    *,
    environment: Mapping[str, str],
    secret_environment: Mapping[str, str],
    working_directory: str,
    user: str,
    hostname: str,
    network: bool,
    platform: tuple[str, str],
    name: str,
    fresh: bool = False,
) -> LlbVertex:
    """Return an ``ExecOp``; ``mounts`` begin with the root.

    Its outputs are the writable bind mounts in their order. ``secret_environment`` maps variables
    to ids of secrets, ``platform`` is an operating system and an architecture.
    """
    sources = [mount.source for mount in mounts if mount.source is not None]
    places = list(dict.fromkeys((source.vertex.digest, source.index) for source in sources))
    encoded, outputs = b"", 0
    for mount in mounts:
        output = _NONE
        if mount.kind == "bind" and not mount.readonly:
            output, outputs = outputs, outputs + 1
        input_index = _NONE
        if mount.source is not None:
            input_index = places.index((mount.source.vertex.digest, mount.source.index))
        encoded += _encode_message(2, _encode_mount(mount, input_index, output))
    meta = b"".join(_encode_text(1, arg, required=True) for arg in args)
    meta += b"".join(
        _encode_text(2, f"{key}={value}") for key, value in sorted(environment.items())
    )
    meta += _encode_text(3, working_directory) + _encode_text(4, user) + _encode_text(7, hostname)
    secrets = b"".join(
        _encode_message(5, _encode_text(1, secret) + _encode_text(2, variable))
        for variable, secret in sorted(secret_environment.items())
    )
    mode = _NETWORK_DEFAULT if network else _NETWORK_NONE
    op = _encode_message(2, _encode_message(1, meta) + encoded + _encode_number(3, mode) + secrets)
    system, architecture = platform
    op += _encode_message(10, _encode_text(1, architecture) + _encode_text(2, system))
    vertices = {source.vertex.digest: source.vertex for source in sources}
    inputs = b"".join(_encode_input(digest, index) for digest, index in places)
    return LlbVertex(inputs + op, tuple(vertices.values()), name, fresh)


def make_diff(lower: VertexOutput, upper: VertexOutput, *, name: str = "") -> LlbVertex:
    """Return a ``DiffOp``: what ``upper`` changes in ``lower``."""
    inputs = _encode_input(lower.vertex.digest, lower.index)
    inputs += _encode_input(upper.vertex.digest, upper.index)
    # DiffOp{lower: {input: 0}, upper: {input: 1}}
    diff = _encode_message(1, b"") + _encode_message(2, _encode_number(1, 1))
    return LlbVertex(inputs + _encode_message(7, diff), (lower.vertex, upper.vertex), name)


def make_merge(outputs: Sequence[VertexOutput], *, name: str = "") -> LlbVertex:
    """Return a ``MergeOp``: ``outputs`` over one another, the lowest first."""
    inputs = b"".join(_encode_input(output.vertex.digest, output.index) for output in outputs)
    places = b"".join(_encode_message(1, _encode_number(1, index)) for index in range(len(outputs)))
    return LlbVertex(
        inputs + _encode_message(6, places), tuple(output.vertex for output in outputs), name
    )


def encode_definition(output: VertexOutput) -> bytes:
    """Return the ``Definition`` of the graph that ends in ``output``, as ``buildctl`` reads it."""
    vertices = list(_walk_inputs(output.vertex))
    final = _encode_input(output.vertex.digest, output.index)
    ops = b"".join(_encode_message(1, op) for op in (*(vertex.op for vertex in vertices), final))
    metadata = {vertex.digest: _encode_metadata(vertex) for vertex in vertices}
    entries = (
        _encode_message(2, _encode_text(1, digest) + _encode_message(2, value))
        for digest, value in sorted(metadata.items())
    )
    return ops + b"".join(entries)


def _walk_inputs(root: LlbVertex) -> Iterator[LlbVertex]:
    """Yield each vertex once, inputs before those that use them."""
    seen: set[str] = set()
    pending = [(root, False)]
    while pending:
        vertex, is_expanded = pending.pop()
        if is_expanded:
            yield vertex
        elif vertex.digest not in seen:
            seen.add(vertex.digest)
            pending.append((vertex, True))
            pending.extend((parent, False) for parent in reversed(vertex.inputs))


def _encode_metadata(vertex: LlbVertex) -> bytes:
    description = {"llb.customname": vertex.name} if vertex.name else {}
    return _encode_number(1, vertex.fresh) + _encode_text_map(2, description)


def _encode_input(digest: str, index: int) -> bytes:
    return _encode_message(1, _encode_text(1, digest) + _encode_number(2, index))


def _encode_mount(mount: ExecMount, input_index: int, output: int) -> bytes:
    encoded = (
        _encode_number(1, input_index)
        + _encode_text(2, mount.selector)
        + _encode_text(3, mount.target)
    )
    encoded += _encode_number(4, output) + _encode_number(5, mount.readonly)
    encoded += _encode_number(6, _MOUNT_TYPES[mount.kind])
    owner = _encode_text(1, mount.id) + _encode_number(2, mount.uid) + _encode_number(3, mount.gid)
    if mount.kind == "tmpfs":
        encoded += _encode_message(19, b"")
    elif mount.kind == "secret":
        encoded += _encode_message(21, owner + _encode_number(4, mount.mode))
    elif mount.kind == "ssh":
        encoded += _encode_message(22, owner + _encode_number(4, mount.mode))
    return encoded


# -- the wire format (protobuf.dev/programming-guides/encoding)


def _encode_varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers are written in two's complement
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _encode_number(field: int, value: int) -> bytes:
    return _encode_varint(field << 3) + _encode_varint(value) if value else b""


def _encode_message(field: int, data: bytes) -> bytes:
    return _encode_varint(field << 3 | 2) + _encode_varint(len(data)) + data


def _encode_text(field: int, text: str, *, required: bool = False) -> bytes:
    return _encode_message(field, text.encode()) if text or required else b""


def _encode_text_map(field: int, values: Mapping[str, str]) -> bytes:
    return b"".join(
        _encode_message(field, _encode_text(1, key) + _encode_text(2, value))
        for key, value in sorted(values.items())
    )
