"""LLB, encoded: what decides a vertex's digest, and what BuildKit itself reads of it."""

from __future__ import annotations

import json
import subprocess

import pytest

from danlu.builder.buildkit.llb import (
    ExecMount,
    LlbVertex,
    VertexOutput,
    encode_definition,
    make_diff,
    make_exec,
    make_merge,
    make_source,
)

STACK_IMAGE = "oci-layout://danlu/input@sha256:" + "0" * 64
STACK = VertexOutput(make_source(STACK_IMAGE, {"oci.store": "danlu"}))


def make_step(name: str = "", *, fresh: bool = False, **environment: str) -> LlbVertex:
    return make_exec(
        ("/bin/sh", "-c", "true", ""),
        [
            ExecMount("/", source=STACK),
            ExecMount("/tmp", "tmpfs"),
            ExecMount("/run/secret", "secret", id="s", uid=7, mode=0o400),
            ExecMount("/work", source=STACK, selector="/file", readonly=False),
        ],
        environment=environment,
        secret_environment={"TOKEN": "t"},
        working_directory="/",
        user="0:0",
        hostname="danlu",
        network=False,
        platform=("linux", "amd64"),
        name=name,
        fresh=fresh,
    )


def test_names_and_ignored_caches_are_not_part_of_a_digest() -> None:
    assert make_step("a", fresh=True).digest == make_step("b").digest


def test_digest_covers_variables_whatever_their_order() -> None:
    assert make_step(A="1", B="2").digest == make_step(B="2", A="1").digest
    assert make_step(A="1").digest != make_step(A="2").digest


def test_definition_has_each_vertex_once() -> None:
    step = make_step()
    merged = make_merge(
        [
            VertexOutput(make_diff(STACK, VertexOutput(step))),
            VertexOutput(step),
            VertexOutput(step, 1),
        ]
    )
    definition = encode_definition(VertexOutput(merged))
    assert definition.count(b"/run/secret") == 1


@pytest.mark.real
@pytest.mark.needs("buildctl")
def test_buildctl_reads_the_definition() -> None:
    step = make_step("build it", fresh=True, A="1")
    definition = encode_definition(VertexOutput(make_diff(STACK, VertexOutput(step, 1)), 0))
    result = subprocess.run(
        ["buildctl", "debug", "dump-llb"], input=definition, capture_output=True, check=True
    )
    source, command, diff, _ = [json.loads(line) for line in result.stdout.splitlines()]
    assert [entry["Digest"] for entry in (source, command)] == [STACK.vertex.digest, step.digest]
    assert command["OpMetadata"] == {
        "ignore_cache": True,
        "description": {"llb.customname": "build it"},
    }
    op = command["Op"]
    assert op["platform"] == {"Architecture": "amd64", "OS": "linux"}
    assert op["Op"]["exec"] == {
        "meta": {
            "args": ["/bin/sh", "-c", "true", ""],
            "env": ["A=1"],
            "cwd": "/",
            "user": "0:0",
            "hostname": "danlu",
        },
        "mounts": [
            {"dest": "/"},
            {"input": -1, "dest": "/tmp", "output": -1, "mountType": 4, "TmpfsOpt": {}},
            {
                "input": -1,
                "dest": "/run/secret",
                "output": -1,
                "mountType": 1,
                "secretOpt": {"ID": "s", "uid": 7, "mode": 256},
            },
            {"selector": "/file", "dest": "/work", "output": 1},
        ],
        "network": 2,
        "secretenv": [{"ID": "t", "name": "TOKEN"}],
    }
    assert diff["Op"]["inputs"][1] == {"digest": step.digest, "index": 1}
