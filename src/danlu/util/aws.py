"""The SDK of AWS (boto3, extra ``aws``): clients, and its errors as danlu's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio.to_thread

from danlu.errors import DanluError, MachineError, OutsideError, TemporaryError, UsageError
from danlu.util.sanitize import escape_unprintable

_CONNECT_SECONDS = 10
_READ_SECONDS = 60
_ATTEMPTS = 3
_MAX_REASON_LENGTH = 500

#: Error codes of credentials that are known but not valid (any more), by their services.
_REJECTED_CODES = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_DENIED_CODES = frozenset(
    {"AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation"}
)
_LOGIN_HINT = (
    "`aws configure` or `aws sso login` provides them; AWS_PROFILE selects a profile; on a machine"
    " of AWS its role counts"
)


class AwsError(OutsideError):
    """AWS refused a request; ``code`` is its error code, such as ``AccessDeniedException``."""

    def __init__(self, message: str, *, code: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


def create_aws_client(
    service: str, *, region: str = "", profile: str = "", **settings: bool
) -> Any:
    """Return a client for a service such as ``ecr``; by default in the region that is configured.

    Credentials, region and endpoint are found as by AWS's own command line: ``AWS_*`` variables,
    ``~/.aws``, the role of the machine. ``settings`` are further ones of botocore's Config; false
    means what is configured. Raises :class:`MachineError` if boto3 is not installed, and
    :class:`UsageError` for an unknown profile or without a region.
    """
    # An optional dependency, and it takes 0.2 seconds to import.
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        hint = f"`{sys.executable} -m uv pip install --python {sys.executable} boto3`"
        raise MachineError("boto3 is not installed", hint=hint) from error
    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        user_agent_extra="danlu",
        **{name: value for name, value in settings.items() if value},
    )
    with translate_aws_errors(service):
        session = boto3.Session(profile_name=profile or None, region_name=region or None)
        return session.client(service, config=config)


async def call_aws(client: Any, operation: str, **parameters: Any) -> dict[str, Any]:
    """Return the answer to a request such as ``create_repository``, which runs in a thread.

    Raises what :func:`translate_aws_errors` does.
    """
    call = partial(getattr(client, operation), **parameters)
    # As IAM policies name it: ecr:CreateRepository.
    action = client.meta.method_to_api_mapping[operation]
    with translate_aws_errors(f"{client.meta.service_model.service_name}:{action}"):
        # Its time is limited, so that nobody must wait for it after an interrupt.
        answer: dict[str, Any] = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
        return answer
    raise AssertionError("a failed request raises")


@contextmanager
def translate_aws_errors(action: str) -> Iterator[None]:
    """Raise the errors of AWS's SDK inside the block as danlu's.

    ``action`` names what was asked for. A refusal is an :class:`AwsError`, missing credentials are
    a :class:`MachineError`, throttling and lost connections a :class:`TemporaryError`.
    """
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        raise _translate_refusal(action, error.response.get("Error") or {}) from error
    except (exceptions.NoRegionError, exceptions.InvalidRegionError) as error:
        raise UsageError(
            "AWS needs a region" if isinstance(error, exceptions.NoRegionError) else str(error),
            hint="AWS_REGION=eu-central-1, or `aws configure`",
        ) from error
    except exceptions.ProfileNotFound as error:
        raise UsageError(
            _shorten_reason(str(error)), hint="`aws configure list-profiles`"
        ) from error
    except (
        exceptions.ConnectionError,
        exceptions.HTTPClientError,
        exceptions.IncompleteReadError,
    ) as error:
        raise TemporaryError(
            f"AWS did not answer {action}: {_shorten_reason(str(error))}",
            hint="check the region, your network connection and AWS_ENDPOINT_URL",
        ) from error
    except (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.InvalidConfigError,
        exceptions.SSOError,
        exceptions.TokenRetrievalError,
    ) as error:
        raise MachineError(
            f"no credentials for AWS: {_shorten_reason(str(error))}", hint=_LOGIN_HINT
        ) from error
    except exceptions.BotoCoreError as error:
        raise OutsideError(f"{action} failed: {_shorten_reason(str(error))}") from error


def _translate_refusal(action: str, answer: dict[str, Any]) -> DanluError:
    code = str(answer.get("Code") or "")
    reason = _shorten_reason(str(answer.get("Message") or code))
    if "Throttl" in code or code in ("TooManyRequestsException", "ServerException"):
        return TemporaryError(f"AWS cannot answer {action} now: {reason}", hint="try again later")
    hint = ""
    if code in _REJECTED_CODES:
        hint = f"these credentials are not valid (any more): {_LOGIN_HINT}"
    elif code in _DENIED_CODES:
        hint = f"allow {action} to this user or role in an IAM policy"
    return AwsError(f"AWS refused {action} ({code}): {reason}", code=code, hint=hint)


def _shorten_reason(text: str) -> str:
    line = escape_unprintable(" ".join(text.split()))
    return line if len(line) <= _MAX_REASON_LENGTH else f"{line[:_MAX_REASON_LENGTH]}…"
