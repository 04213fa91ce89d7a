"""Clients of AWS find their settings as AWS's tools do, and their errors are danlu's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.errors import DanluError, MachineError, TemporaryError, UsageError
from danlu.util.aws import AwsError, call_aws, create_aws_client
from tests.fakes.aws import AwsEndpoint, refuse_request, serve_aws

_VARIABLES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION")


def set_environment(
    endpoint: AwsEndpoint, home: Path, monkeypatch: pytest.MonkeyPatch, **changes: str
) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in (endpoint.environ(home) | changes).items():
        monkeypatch.setenv(name, value)


def describe_repositories(*, region: str = "", profile: str = "") -> dict[str, Any]:
    client = create_aws_client("ecr", region=region, profile=profile)

    async def call() -> dict[str, Any]:
        return await call_aws(client, "describe_repositories", registryId="123456789012")

    return anyio.run(call)


def test_region_and_credentials_are_those_of_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "aws-config").write_text("[profile team]\nregion = eu-north-1\n")
    with serve_aws({"DescribeRepositories": lambda _: (200, {"repositories": []})}) as endpoint:
        set_environment(endpoint, tmp_path, monkeypatch, AWS_PROFILE="team")
        assert describe_repositories()["repositories"] == []
        describe_repositories(region="cn-north-1")
    assert [region for _, region, _ in endpoint.requests] == ["eu-north-1", "cn-north-1"]
    assert endpoint.requests[0][2] == {"registryId": "123456789012"}


@pytest.mark.parametrize(
    ("code", "kind", "message", "hint"),
    [
        (
            "AccessDeniedException",
            AwsError,
            "AWS refused ecr:DescribeRepositories (AccessDeniedException): User: ann may not",
            "allow ecr:DescribeRepositories",
        ),
        ("ExpiredTokenException", AwsError, "AWS refused", "not valid (any more)"),
        ("ThrottlingException", TemporaryError, "AWS cannot answer", "later"),
        ("RepositoryNotFoundException", AwsError, "AWS refused", ""),
    ],
)
def test_refusals_are_our_errors(
    code: str,
    kind: type[DanluError],
    message: str,
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The SDK would wait before it repeats a throttled request.
    monkeypatch.setattr("danlu.util.aws._ATTEMPTS", 1)
    with serve_aws({"DescribeRepositories": refuse_request(code, "User: ann may not")}) as endpoint:
        set_environment(endpoint, tmp_path, monkeypatch)
        with pytest.raises(kind) as caught:
            describe_repositories(region="eu-north-1")
    assert message in caught.value.message
    assert hint in caught.value.hint
    if isinstance(caught.value, AwsError):
        assert caught.value.code == code


def test_missing_settings_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_aws({}) as endpoint:
        set_environment(endpoint, tmp_path, monkeypatch)
        with pytest.raises(UsageError, match="AWS needs a region") as no_region:
            describe_repositories()
        assert "AWS_REGION" in no_region.value.hint
        with pytest.raises(UsageError, match="region_name"):
            describe_repositories(region="no region")
        with pytest.raises(UsageError, match="other"):
            describe_repositories(profile="other")
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(MachineError, match="no credentials for AWS") as no_login:
            describe_repositories(region="eu-north-1")
        assert "aws configure" in no_login.value.hint
    assert endpoint.requests == []


def test_an_endpoint_that_does_not_answer_is_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danlu.util.aws._ATTEMPTS", 1)
    with serve_aws({}) as endpoint:
        set_environment(endpoint, tmp_path, monkeypatch)
    with pytest.raises(TemporaryError, match="did not answer ecr:DescribeRepositories"):
        describe_repositories(region="eu-north-1")


def test_without_boto3_its_installation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MachineError, match="boto3 is not installed") as caught:
        create_aws_client("ecr")
    assert caught.value.hint.endswith("boto3`")
