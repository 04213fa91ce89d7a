"""What an image of a registry says of itself; it is untrusted."""

from __future__ import annotations

import json

import pytest

from danlu.environment.lock import MAX_EPOCH
from danlu.resolve.image import parse_creation_time


@pytest.mark.parametrize(
    ("created", "epoch"),
    [
        ("2024-05-06T07:08:10Z", 1714979290),
        ("2024-05-06T07:08:10.123456789Z", 1714979290),
        ("2024-05-06T09:08:10.5+02:00", 1714979290),
        ("2024-05-06T07:08:10", 1714979290),
        ("0001-01-01T00:00:00Z", 0),
        ("9999-12-31T23:59:59Z", MAX_EPOCH),
        ("2024-13-40T99:00:00Z", 0),
        ("yesterday", 0),
        ("", 0),
        (None, 0),
        (17, 0),
    ],
)
def test_the_creation_time_is_one_that_layers_can_have(created: object, epoch: int) -> None:
    assert parse_creation_time(json.dumps({"created": created}).encode()) == epoch
    assert parse_creation_time(b"{}") == 0
