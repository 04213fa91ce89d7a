"""Checks that training jobs can run in an account, for ``danlu doctor``. Nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from danlu.engine.contexts import SageMakerAccount
from danlu.jobs.services import Probe
from danlu.oci.registry.clouds import find_cloud
from danlu.util.aws import AwsError, create_aws_client, translate_aws_errors

_SERVICE = "sagemaker.amazonaws.com"


def list_account_probes(account: SageMakerAccount, region: str) -> Mapping[str, Probe]:
    """Return the checks of an account by name."""
    checks = {
        "AWS credentials": _check_credentials,
        "SageMaker": _check_service,
        "SageMaker role": _check_role,
        "S3 bucket": _check_bucket,
        "ECR": _check_registry,
    }
    return {name: partial(check, account, region) for name, check in checks.items()}


def _send_request(
    service: str, operation: str, region: str, **parameters: Any
) -> Mapping[str, Any]:
    client = create_aws_client(service, region=region)
    with translate_aws_errors(f"{service}:{client.meta.method_to_api_mapping[operation]}"):
        answer: Mapping[str, Any] = getattr(client, operation)(**parameters)
        return answer


def _check_credentials(account: SageMakerAccount, region: str) -> tuple[bool, str, str]:
    found = _send_request("sts", "get_caller_identity", region)
    if found["Account"] != account.account:
        return (
            False,
            f"{found['Arn']} is of another account than the role {account.role}",
            "AWS_PROFILE selects other credentials",
        )
    return True, str(found["Arn"]), ""


def _check_service(account: SageMakerAccount, region: str) -> tuple[bool, str, str]:
    _send_request("sagemaker", "list_training_jobs", region, MaxResults=1)
    return True, f"training jobs in {region}", ""


def _check_role(account: SageMakerAccount, region: str) -> tuple[bool, str, str]:
    name = account.role.rpartition("/")[2]
    try:
        found = _send_request("iam", "get_role", region, RoleName=name)["Role"]
    except AwsError as error:
        if error.code == "NoSuchEntity":
            return False, f"role {name} not found", "create the context again, with another --role"
        if error.code.startswith("AccessDenied"):
            return True, f"{account.role}, not checked: you may not read roles", ""
        raise
    policy = found.get("AssumeRolePolicyDocument")
    text = policy if isinstance(policy, str) else json.dumps(policy)
    if _SERVICE not in text:
        return (
            False,
            f"{account.role} is not a role of SageMaker",
            f"allow {_SERVICE} to assume it, in its trust policy",
        )
    return True, account.role, ""


def _check_bucket(account: SageMakerAccount, region: str) -> tuple[bool, str, str]:
    bucket = account.bucket
    try:
        answer = _send_request("s3", "head_bucket", region, Bucket=bucket)
    except AwsError as error:
        if error.code == "404":
            return False, f"bucket {bucket} not found", f"aws s3 mb s3://{bucket} --region {region}"
        if error.code == "403":
            return False, f"you may not use bucket {bucket}", "allow s3:ListBucket in a policy"
        raise
    place = answer.get("BucketRegion") or region
    if place != region:
        return (
            False,
            f"bucket {bucket} is in {place}, not in {region}",
            "use a bucket of the region",
        )
    return True, f"s3://{bucket}", ""


def _check_registry(account: SageMakerAccount, region: str) -> tuple[bool, str, str]:
    registry = account.find_registry(region)
    cloud = find_cloud(registry.partition("/")[0])
    if cloud is None or cloud.kind != "ecr":
        return True, f"{registry}, which is not ECR", ""
    if cloud.region != region:
        return False, f"{registry} is not in {region}", "use a registry of the jobs' region"
    _send_request("ecr", "describe_repositories", region, registryId=cloud.account, maxResults=1)
    return True, registry, ""
