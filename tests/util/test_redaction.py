"""Secrets never leave in a bug report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.util.redaction import SecretRedactor, is_secret_name

SECRET = "s3cr3tValue+xyz.1"


def redact(text: str, environ: dict[str, str] | None = None) -> str:
    return SecretRedactor(environ or {}).redact_text("file", text)


@pytest.mark.parametrize(
    "text",
    [
        "index = https://user:{}@example.org/simple",
        "https://{}@example.org",
        "postgres://me:a/b?{}@example.org/db",
        "ssh://git:{}@example.org/x",
        "https://example.org/x?a=1&access_token={}&b=2",
        "https://bucket.example.org/x?X-Amz-Signature={}",
        "Authorization: Bearer {}",
        "curl -H 'authorization: Basic {}' https://example.org",
        '{{"Authorization": "token {}"}}',
        "Cookie: session={}",
        "HF_TOKEN={}",
        "export WANDB_API_KEY='{}'",
        'config.jupyter(token="{}")',
        "password: {}",
        "db_password = '{}'",
        "AWS_SECRET_ACCESS_KEY={}",
        "HF_TOKEN_READ={}",
        "MY_KEY = {}",
        "tool --password {} --other",
        "tool --api-key={}",
        "machine example.org login me password {}",
        "  password {}\n",
        '{{"auths": {{"r.example.org": {{"auth": "{}"}}}}}}',
        "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\n{}\n (cut off)",
    ],
)
def test_secrets_are_removed(text: str) -> None:
    redactor = SecretRedactor({})
    redacted = redactor.redact_text("file", text.format(SECRET))
    assert SECRET not in redacted
    assert "s3cr3t" not in redacted
    assert "***" in redacted
    assert sum(redactor.removed["file"].values()) >= 1
    assert redactor.redact_text("file", redacted) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "ghp_" + "a1" * 18,
        "hf_" + "Ab1" * 10,
        "AKIA" + "ABCD1234" * 2,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "glpat-" + "x9" * 10,
    ],
)
def test_well_known_tokens_are_removed_wherever_they_are(text: str) -> None:
    assert redact(f"read {text}, then") == "read ***, then"


@pytest.mark.parametrize(
    "text",
    [
        "tokenizers==0.20.1",
        'tokenizers = "0.20.1"',
        'name = "secretstorage"\nversion = "3.3"\nsha256 = "' + "ab" * 32 + '"',
        "password = ''",
        "token = None",
        'config.jupyter(token="", port=8888)',
        "run(commands=[], secrets=[])",
        "git clone https://example.org/x.git && git clone ssh://git@example.org/y",
        "keyring = /usr/share/keyrings/x.gpg",
        "https://example.org/a@b",
        "https://example.org:8080/a@b",
        "see https://example.org: mail me@example.org",
        'install.python_packages(["numpy", "torch"])',
    ],
)
def test_other_text_is_kept(text: str) -> None:
    assert redact(text) == text


def test_values_of_secret_variables_are_removed_everywhere() -> None:
    environ = {"HF_TOKEN": SECRET, "SHORT_TOKEN": "abc", "HOME": "/home/me"}
    redactor = SecretRedactor(environ)
    assert redactor.redact_text("log", f"echo {SECRET} abc") == "echo *** abc"
    output = redactor.redact_variables("env", environ, ["HF_TOKEN", "HOME"])
    assert output == {"HF_TOKEN": "***", "HOME": "/home/me"}
    assert redactor.removed["env"] == {"value of a secret variable": 1}


def test_values_of_data_are_removed_by_their_name() -> None:
    redactor = SecretRedactor({})
    value = {"password": SECRET, "steps": ["curl -u x https://a:b@example.org"], "n": 1}
    assert redactor.redact_values("plan", value) == {
        "password": "***",
        "steps": ["curl -u x https://***@example.org"],
        "n": 1,
    }


@given(st.text())
def test_redaction_is_stable(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@pytest.mark.timeout(60)
@pytest.mark.parametrize("unit", ["a-", "eyJ-", "--", "a://", "token ", "password=", '"', "\\"])
def test_long_hostile_text_takes_linear_time(unit: str) -> None:
    redact(unit * 60_000)  # with quadratic time the test's limit ends it


def test_names_of_secret_variables() -> None:
    secret = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "GH_PAT", "REGISTRY_AUTH")
    assert all(map(is_secret_name, secret))
    assert not any(map(is_secret_name, ("PATH", "TOKENIZERS_PARALLELISM", "DANLU_HOME", "KEYMAP")))
