"""Files with credentials are recognised, and files that only speak of them are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.util.secret_detection import find_secret

UUID = "f3a1c2d4-5b6e-4f70-8a91-b2c3d4e5f607"
HEX = "0123456789abcdef0123456789abcdef01234567"
AWS = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"

SECRET_FILES = [
    # pip, uv, poetry, PyPI
    (
        "/root/.config/pip/pip.conf",
        "[global]\nindex-url = https://me:hunter2@pypi.corp/simple\n",
        "URL credentials (line 2)",
    ),
    (
        "/etc/pip.conf",
        "[global]\nextra-index-url =\n    https://__token__:hunter2@pypi.corp/simple\n",
        "URL",
    ),
    ("/etc/pip.conf", f"[global]\nindex-url = https://{HEX}@pypi.corp/simple\n", "URL"),
    (
        "/root/.config/uv/uv.toml",
        '[[index]]\nname = "corp"\nurl = "https://me:hunter2@pypi.corp/simple"\n',
        "URL",
    ),
    (
        "/opt/requirements.txt",
        "--extra-index-url https://me:hunter2@pypi.corp/simple\nnumpy\n",
        "URL",
    ),
    (
        "/root/.config/pypoetry/auth.toml",
        '[http-basic.corp]\nusername = "me"\npassword = "hunter2"\n',
        "credentials",
    ),
    ("/srv/auth.toml", '[http-basic.corp]\nusername = "me"\npassword = "hunter2"\n', "line 3"),
    ("/root/.pypirc", "[pypi]\nusername = __token__\n", "credentials"),
    # apt, conda
    (
        "/etc/apt/sources.list.d/corp.list",
        "deb [arch=amd64] https://me:hunter2@apt.corp/debian bookworm main\n",
        "URL",
    ),
    (
        "/etc/apt/sources.list.d/corp.sources",
        "Types: deb\nURIs: https://me:hunter2@apt.corp/debian\nSuites: bookworm\n",
        "line 2",
    ),
    ("/etc/apt/auth.conf", "machine apt.corp login me password hunter2\n", "credentials"),
    ("/etc/apt/auth.conf.d/corp.conf", "", "credentials"),
    ("/srv/netrc", "machine apt.corp\n  login me\n  password hunter2\n", "netrc login"),
    (
        "/root/.condarc",
        "channels:\n  - https://conda.corp/t/abc-123/main\n",
        "channel token (line 2)",
    ),
    ("/etc/conda/x.yml", f"channels: ['https://conda.example/t/me-{UUID}/x']\n", "channel"),
    # clouds and hubs
    ("/root/.aws/config", "[default]\nregion = eu-west-1\n", "credentials"),
    ("/etc/profile.d/aws.sh", f"export AWS_SECRET_ACCESS_KEY={AWS}\n", "secret value (line 1)"),
    ("/srv/credentials", "[default]\n", "credentials"),
    ("/root/.bashrc", f"# mine\nexport WANDB_API_KEY={HEX}\n", "secret value (line 2)"),
    ("/root/.bashrc", f"HF_TOKEN='hf_{'Ab1' * 10}'\n", ""),
    ("/root/.config/gcloud/access_tokens.db", "SQLite format 3\0", "credentials"),
    ("/srv/account.json", '{"private_key": "-----BEGIN PRIVATE KEY-----\\nMIIE"}', "private key"),
    ("/opt/hf/huggingface/token", "x", "credentials"),
    ("/root/kaggle.json", '{"username":"me","key":"0123456789abcdef"}', "credentials"),
    ("/root/.comet.config", f"[comet]\napi_key = {HEX}\n", "line 2"),
    ("/root/.s3cfg", "", "credentials"),
    # containers, clusters
    (
        "/root/.config/containers/auth.json",
        '{"auths": {"registry.corp": {"auth": "bWU6aHVudGVyMg=="}}}',
        "registry login",
    ),
    ("/root/.docker/config.json", "{}", "credentials"),
    (
        "/srv/kubeconfig",
        "- name: me\n  user:\n    client-key-data: LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0t\n",
        "private key (line 3)",
    ),
    (
        "/srv/secret.yaml",
        "apiVersion: v1\nkind: Secret\nstringData:\n  password: hunter2\n",
        "line 4",
    ),
    (
        "/srv/compose.yaml",
        "services:\n  db:\n    environment:\n      POSTGRES_PASSWORD: hunter2\n",
        "line 4",
    ),
    # git, ssh, npm, yarn, others
    ("/root/.gitconfig", f'[url "https://oauth2:{HEX}@git.corp/"]\n\tinsteadOf = x\n', "URL"),
    (
        "/root/.gitconfig",
        "[http]\n\textraheader = AUTHORIZATION: basic bWU6aHVudGVyMg==\n",
        "Authorization",
    ),
    ("/root/.config/git/credentials", "", "credentials"),
    ("/srv/deploy", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n", "private key"),
    ("/root/.npmrc", "", "credentials"),
    ("/root/.yarnrc.yml", f"npmAuthToken: {UUID}\n", "secret value"),
    ("/root/.m2/settings.xml", "<server>\n<password>hunter2</password>\n</server>\n", "line 2"),
    ("/srv/.env", "X=1\n", "credentials"),
    ("/srv/app.env", "DB_PASSWORD=hunter2\n", "secret value"),
    ("/srv/app.ini", "[db]\nurl = postgresql://app:hunter2@db.corp/app\n", "line 2"),
    ("/srv/app.json", '{"db": {"user": "app", "password": "hunter2"}}', "secret value"),
    ("/srv/app.conf", "password = !QAZ2wsx\n", "line 1"),
    ("/srv/app.conf", "password = @Home2020\n", "line 1"),
    ("/srv/sync.sh", "#!/bin/sh\nmysql -u root -phunter2 db <x.sql\n", "secret option (line 2)"),
    ("/srv/sync.sh", "curl -u me:hunter2 https://files.corp/x\n", "password"),
    ("/srv/train.py", f'import os\nos.environ["WANDB_API_KEY"] = "{HEX}"\n', "secret value"),
    ("/srv/train.py", f'client = Client(api_key="{HEX}")\n', "secret value"),
]

OTHER_FILES = [
    ("/srv/form.py", 'PASSWORD_FIELD = "name"\nTOKEN_TYPE = "bearer"\nAPI_KEY_HEADER = "X-Api"\n'),
    (
        "/srv/app.py",
        'password = os.environ["DB_PASSWORD"]\ntoken: str | None = None\n'
        'def login(user, password="secret"): ...\nsecret = getpass("Password: ")\n'
        'parser.add_argument("--token", default="")\n',
    ),
    ("/srv/test_db.py", 'URL = "postgresql://scott:tiger@localhost/test"\n'),
    ("/srv/README.md", "Use `https://user:password@host/` or set API_KEY=your-api-key.\n"),
    (
        "/srv/tokenizer_config.json",
        '{"bos_token": "<s>", "eos_token": "<|endoftext|>", "pad_token": "[PAD]",'
        ' "mask_token": "[MASK]", "eos_token_id": 2, "tokenizer_class": "LlamaTokenizer"}',
    ),
    ("/srv/train.yaml", "max_tokens: 4096\npad_token: eos\ntokenizer: bert\nsort_key: length\n"),
    ("/etc/nsswitch.conf", "passwd:         files systemd\nshadow: files\n"),
    ("/etc/pam.d/common-password", "password\t[success=1 default=ignore]\tpam_unix.so\n"),
    ("/etc/ssh/sshd_config", "PasswordAuthentication no\nPermitRootLogin prohibit-password\n"),
    ("/etc/debconf.conf", "Name: passwords\nAccept-Type: password\nFilename: passwords.dat\n"),
    ("/etc/redis.conf", "# requirepass foobared\n# masterauth <master-password>\n"),
    ("/etc/app.conf", "#password = hunter2\n; api_key = abc\npassword =\nsecret = ${SECRET}\n"),
    ("/etc/mongod.conf", "security:\n  authorization: enabled\n"),
    ("/etc/nginx.conf", "ssl_certificate_key /etc/ssl/private/x.key;\nproxy_pass http://app;\n"),
    ("/etc/pip.conf", "[global]\nindex-url = https://pypi.corp:8443/simple\n"),
    ("/etc/apt/sources.list", "deb https://mirror.example/debian bookworm main\n"),
    ("/root/.condarc", "channels: [conda-forge, 'https://conda.corp/main']\n"),
    ("/root/.gitconfig", "[credential]\n\thelper = store\n[user]\n\temail = me@example.org\n"),
    ("/root/.gitconfig", '[url "git@github.com:"]\n\tinsteadOf = https://github.com/\n'),
    (
        "/srv/pod.yaml",
        "env:\n- name: DB_PASSWORD\n  valueFrom:\n    secretKeyRef: {name: db, key: pw}\n"
        "volumes:\n- secret:\n    secretName: tls\n",
    ),
    ("/srv/compose.yaml", "      POSTGRES_PASSWORD_FILE: /run/secrets/db\n      KEY: ${KEY}\n"),
    ("/srv/run.sh", 'curl -H "Authorization: Bearer $TOKEN" https://x\nexport PASS=$(pass x)\n'),
    ("/srv/run.sh", 'docker run -u 1000:1000 x\nmysql -p"$PW" db\nrsync -u box:data out\n'),
    ("/srv/locale/en.json", '{"password": "Enter your password", "forgot_password": "Forgot it?"}'),
    ("/srv/locale/de.json", '{"password": "Passwort eingeben"}'),
    ("/srv/schema.json", '{"password": {"type": "string"}, "token": "string"}'),
    ("/srv/.env.example", "DB_PASSWORD=changeme\nAPI_KEY=<your key>\nSECRET_KEY=xxxxxxxx\n"),
    ("/srv/deploy.pub", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0000 me@box\n"),
    ("/srv/authorized", "sk-ssh-ed25519-cert-v01@openssh.com AAAA me@box\n"),
    ("/srv/links.html", '<a href="https://discuss.pytorch.org/t/some-topic-12/345">topic</a>'),
    ("/srv/x.yaml", "password: *shared\npassword: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n"),
    ("/srv/x.ini", "password = %(other)s\nsecret = %SECRET%\npassword = @/run/secrets/pw\n"),
    ("/srv/x.conf", "password = ../../run/x/../pw\npassword = <password>\n"),
    ("/srv/README", "base-passwd for Debian, and auth-token from them\n"),
    ("/srv/x.py", 'HEX_PAT = "[0-9A-Fa-f]{1,4}"\n'),
    ("/srv/poetry.lock", 'name = "secretstorage"\ncontent-hash = "' + HEX + '"\n'),
]


@pytest.mark.parametrize(("path", "text", "found"), SECRET_FILES)
def test_a_file_with_a_credential_is_recognised(path: str, text: str, found: str) -> None:
    assert found in find_secret(path, text)
    assert find_secret(path, text)


@pytest.mark.parametrize(("path", "text"), OTHER_FILES)
def test_a_file_that_only_speaks_of_credentials_is_not_secret(path: str, text: str) -> None:
    assert find_secret(path, text) == ""


def test_a_file_with_a_known_secret_is_recognised_whatever_it_is() -> None:
    text = "first\nx-correct-horse-battery-y\0"
    assert find_secret("/srv/x", text) == ""
    found = find_secret("/srv/x", text, ["correct-horse-battery"])
    assert found == "the value of a secret variable (line 2)"
    # A value that is in many files says nothing.
    assert find_secret("/srv/x", "enabled: true\n", ["enabled", "true"]) == ""


@given(st.text(), st.sampled_from(["/srv/x", "/srv/x.py", "/root/.condarc"]))
def test_any_text_has_an_answer(text: str, path: str) -> None:
    assert isinstance(find_secret(path, f"password = {text}\n{text}@{text}"), str)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit",
    ["password=a ", "password: x y", "/a..", "password=/a../a..", "https://a:b@c ", "-u a:b ", "#"],
)
def test_long_hostile_text_takes_linear_time(unit: str) -> None:
    find_secret("/srv/x.py", unit * 15_000)  # with quadratic time the test's limit ends it
    find_secret("/srv/x", f"password = {unit * 15_000}!")
