"""Secrets never leave in a bug report."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.util.redaction import SecretRedactor, is_secret_name

SECRET = "s3cr3tValue+xyz.1"


ORDINARY_LINES = (
    "docker run -u 1000:1000 --user 0:0 -p 8080:80 image",
    "docker run --user app:app -p 127.0.0.1:22:22 image",
    "ssh -p 2222 me@example.org",
    "mysql -u root -h 127.0.0.1 -P 3306 db",
    "mysqld: ready for connections. Version: '8.0.36'  port: 3306",
    "docker login registry.example.org",
    "git push -u origin main:main",
    "python -u train.py --epochs 3 --lr 0.1",
    "date -u +%Y-%m-%dT%H:%M:%SZ",
    "12:30:01 INFO -u- loss: 0.25",
    "journalctl -u danlu.service -p err",
    "mkdir -p /opt/venv && cp -a x y",
    "WWW-Authenticate: Bearer realm=x",
    "the bearer certificates are valid",
    "uvicorn main:app --host 0.0.0.0",
    "echo done | tee log",
    "zip -r out.zip dir",
    "train: 100%|#####| 3/3 [00:01<00:00, 2.5it/s]",
    "Traceback (most recent call last):",
)


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
        "curl -u me:{} https://example.org",
        "curl -fsSLu 'me:{} x' https://example.org",
        "curl -ume:{} https://example.org",
        "curl --user=me:{} https://example.org",
        "curl --proxy-user me:{} https://example.org",
        "curl --oauth2-bearer {} https://example.org",
        '["curl", "-u", "me:{}"]',
        "smbclient -U 'me%{}' //host/share",
        "mysql -u root -p{} db",
        "mysqldump -p'{} x' db",
        'args: ["mariadb-admin", "-p{}"]',
        "mongo --host x -p {}",
        "sshpass -p {} ssh -p 22 host",
        "docker login -u me -p {} registry.example.org",
        "podman login --password {} registry.example.org",
        '["docker", "login", "--password", "{}"]',
        "echo {} | docker login --password-stdin",
        "redis-cli -h x -a {}",
        "unzip -P {} x.zip",
        "ldapsearch -x -w {}",
        "openssl rsa -passin pass:{}",
        "sent Bearer {} to the server",
        "PRIVATE-TOKEN: {}",
        "MYSQL_PWD={} mysql",
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
        "sk-proj-" + "x9" * 20,
        "xoxb-" + "12-ab" * 5,
        "nvapi-" + "x9" * 20,
        "AGE-SECRET-KEY-1" + "Q2" * 20,
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
        *ORDINARY_LINES,
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


SECRETS = st.text("abcXYZ0189!@#%^*_+=./-", min_size=1, max_size=24).map(
    lambda text: f"s3{text}q7ZZ"
)
COMMANDS = st.sampled_from(
    [
        ("curl -sS -u me:{} https://example.org/x",),
        ("curl --user 'me:{}' https://example.org/x",),
        ("mysql -h db -u root -p{} -e 'select 1'",),
        ("sshpass -p {} ssh -p 22 host",),
        ("docker login -u me -p {} registry.example.org",),
        ("tool --token {} --verbose",),
        ("tool --password={}",),
        ("AWS_SECRET_ACCESS_KEY={} aws s3 ls",),
        ("Authorization: Bearer {}",),
        ("curl", "-u", "me:{}", "https://example.org"),
        ("docker", "login", "-p", "{}", "registry.example.org"),
        ("tool", "--api-key", "{}", "run"),
        ("mysql", "-p{}", "db"),
    ]
)


@given(COMMANDS, SECRETS, st.lists(st.sampled_from(ORDINARY_LINES)), st.integers(0, 9))
def test_secrets_of_commands_never_remain_and_ordinary_lines_do(
    words: tuple[str, ...], secret: str, lines: list[str], place: int
) -> None:
    command = [word.replace("{}", secret) for word in words]
    place = min(place, len(lines))
    for line in (" ".join(command), json.dumps(command), repr(command)):
        redacted = redact("\n".join([*lines[:place], line, *lines[place:]])).split("\n")
        assert secret not in redacted[place]
        assert "***" in redacted[place]
        assert [*redacted[:place], *redacted[place + 1 :]] == lines
        assert redact(redacted[place]) == redacted[place]
    values = SecretRedactor({}).redact_values("plan", command)
    assert isinstance(values, list)
    assert len(values) == len(command)
    assert secret not in "".join(values)


def test_words_of_a_command_are_read_together() -> None:
    header = ["curl", "-H", "Authorization: Bearer x1", "-u", "me:pass1", "--token", "t1", "url"]
    expected = ["curl", "-H", "Authorization: ***", "-u", "me:***", "--token", "***", "url"]
    assert SecretRedactor({}).redact_values("plan", header) == expected
    mixed = ["-u", "me:\x1fx", {"password": "x"}, 3]
    assert SecretRedactor({}).redact_values("plan", mixed)[2:] == [{"password": "***"}, 3]  # type: ignore[index]


@given(st.text())
def test_redaction_is_stable(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit",
    [
        "a-",
        "eyJ-",
        "--",
        "a://",
        "token ",
        "password=",
        '"',
        "\\",
        "-u a:",
        "mysql ",
        "bearer a",
        "echo a",
        "docker login",
    ],
)
def test_long_hostile_text_takes_linear_time(unit: str) -> None:
    redact(unit * 20_000)  # with quadratic time the test's limit ends it


def test_names_of_secret_variables() -> None:
    secret = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "GH_PAT", "REGISTRY_AUTH")
    assert all(map(is_secret_name, secret))
    assert not any(map(is_secret_name, ("PATH", "TOKENIZERS_PARALLELISM", "DANLU_HOME", "KEYMAP")))
