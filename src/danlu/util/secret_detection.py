"""Say whether a file contains a secret, so that it is neither copied nor published unnoticed.

The patterns are those of :mod:`danlu.util.redaction`, which removes what may be secret. Here a
match counts only if its value is a literal that can be a secret: no variable, path, placeholder or
prose. In programs, documents and comments, whose examples have passwords, it must look random, too.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection

from danlu.util.redaction import SECRET_PATTERNS

#: Files in which programs keep logins and keys, by their path.
_SECRET_FILES = re.compile(
    r"/(?:\.env|\.git-credentials|\.my(?:login)?\.cnf|[._]netrc|\.npmrc|\.pgpass|\.pypirc|\.s3cfg"
    r"|\.boto|\.vault-token|\.dockercfg|\.htpasswd|\.smbcredentials|kaggle\.json|rclone\.conf"
    r"|credentials(?:\.(?:json|toml|db|ini|xml|ya?ml|tfrc\.json))?"
    r"|id_(?:dsa|ecdsa|ed25519|rsa)(?:_sk)?|[^/]+\.(?:p12|pfx|kdbx|ppk)"
    r"|\.?huggingface/(?:stored_)?tokens?|pypoetry/auth\.toml|etc/apt/auth\.conf)$"
)
#: The same for all files of a directory.
_SECRET_DIRECTORIES = re.compile(
    r"/(?:\.aws|\.azure|\.docker|\.gnupg|\.kube|\.oci|\.password-store|\.ssh"
    r"|\.config/(?:gcloud|gh)|\.continuum|\.local/share/(?:keyrings|python_keyring)"
    r"|etc/apt/auth\.conf\.d)/"
)
#: Files of programs and of prose.
_CODE = re.compile(
    r"\.(?:py[ix]?|ipynb|[jt]sx?|mjs|cjs|[ch]|cc|cpp|cxx|hpp|cuh?|java|kt|scala|swift|go|rs|rb|p[lm]"
    r"|php|lua|r|jl|m|cs|el|vim|html?|css|svg|md|rst|tex|csv|tsv|po|pot|mo|1)$",
    re.IGNORECASE,
)
_INTERPRETER = re.compile(r"#![^\n]*\b(?:python|perl|ruby|node|Rscript|julia|lua|php)")
_COMMENT = re.compile(r"[ \t]*(?:#|;|//|-- |/?\*|<!--|\"\"\")")

#: Kinds of :data:`SECRET_PATTERNS` that have a form of their own.
_CERTAIN = ("private key", "token")
#: What the name of a setting ends with if its value is a password, whatever that looks like.
_PASSWORD_NAME = re.compile(r"(?:passw(?:or)?d|passphrase|(?:^|_)(?:pass|pwd)|secret)[\d_]*$")
#: The same if its value is a key or token, which looks random. `eos_token` is not secret.
_KEY_NAME = re.compile(
    r"(?<!public_)(?:token|key|_pat|auth|bearer|credentials?|secret|password|signature|sig|jwt)"
    r"(?:_(?:read|write|prod|production|dev|staging|test|value|base64|b64|data|\d+))?$"
)
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NAME = re.compile(r"([\w.-]+)[\"'>\])]{0,3}[ \t]*(?:=>|[:=])?\s*[\"']?$")

#: An option of one letter that is a password, and `echo` of one that a program reads.
_SHORT_OPTION = re.compile("_[A-Za-z]|echo")

#: What is used in place of a value: a variable, a template, a call, a path.
_REFERENCE = re.compile(
    r"[$`]\S|%\(|%\w+%$|\{\{|<[\w -]*>?$|\[[\w -]*\]?$|\(|\*\w+$|.*\$[{(]|.*(?:\.\.\.|…)"
    r"|[@~.]{0,2}(?:/[\w.~-]+)+/?$|(.)\1*$",
    re.DOTALL,
)
#: Words that examples and formats have in its place.
_PLACEHOLDER = re.compile(
    r".*(?:your|example|placeholder|change_?-?me|redacted|insert|dummy|foobar)"
    r"|(?:my|the|a|some|test|new|old)?[_-]?(?:user(?:name)?|pass(?:word|wd|phrase)?|pwd|pw|secret"
    r"|token|key|api[_-]?key|credentials?|value|string|text|hidden)\d?$"
    r"|(?:true|false|yes|no|on|off|none|null|nil|default|required|optional|auto|prompt|files|compat"
    r"|undefined|str|bytes|bearer|basic|jwt|plain)$",
    re.IGNORECASE | re.DOTALL,
)
_MIN_RANDOM_LENGTH = 12
_RANDOM = re.compile(rf"(?=.*\d)(?=.*[A-Za-z])[\w+/=.:~-]{{{_MIN_RANDOM_LENGTH},}}", re.ASCII)
#: How much text around a match is looked at, so that time is linear.
_MAX_CONTEXT = 400


def find_secret(path: str, text: str, values: Collection[str] = ()) -> str:
    """Return what is secret about a file, such as ``token (line 3)``; nothing if nothing is.

    ``path`` is its absolute path where programs use it; ``values`` are known secrets.
    """
    if _SECRET_FILES.search(path) or _SECRET_DIRECTORIES.search(path):
        return "credentials, as in all files of this name"
    for value in values:
        if len(value) >= _MIN_RANDOM_LENGTH and _is_literal(value) and value in text:
            return f"the value of a secret variable ({_name_line(text, text.index(value))})"
    is_code = bool(_CODE.search(path) or _INTERPRETER.match(text))
    kinds = _CERTAIN if "\0" in text else ()
    for kind, pattern, _ in SECRET_PATTERNS:
        for match in () if kinds and kind not in kinds else pattern.finditer(text):
            if kind in _CERTAIN or _is_secret(kind, match, path, is_code):
                return f"{kind} ({_name_line(text, match.start())})"
    return ""


def _name_line(text: str, position: int) -> str:
    return f"line {text.count(chr(10), 0, position) + 1}"


def _is_secret(kind: str, match: re.Match[str], path: str, is_code: bool) -> bool:
    """Return whether the value of a match can be a secret, and not the one of an example."""
    before = match[1]
    value = match[0][len(before) :].strip().strip("\"'")
    bound = max(0, match.start() - _MAX_CONTEXT)
    start = max(bound, match.string.rfind("\n", bound, match.start()) + 1)
    is_example = is_code or _COMMENT.match(match.string, start, match.start() + 1) is not None
    if kind == "URL credentials":
        user, colon, value = value.rstrip("@").partition(":")
        # A user alone is a name, unless it is a token.
        value, is_example = (value, is_example) if colon else (user, True)
    elif kind == "channel token":
        if "conda" not in path:
            # Other addresses have words there.
            value, is_example = value.rpartition("-")[2], True
    elif kind == "netrc login":
        above = match.string[bound : match.start()] + before
        if not re.search(r"\bmachine\b.*\blogin\b.*password\s+$", above, re.DOTALL):
            return False
    elif kind == "Authorization header":
        # `authorization: enabled` is a setting.
        *scheme, value = value.split() or [""]
        is_example = is_example or not scheme
    elif kind == "registry login":
        is_example = ":" not in _decode_base64(value)
    elif kind == "user's password":
        is_example = is_example or "curl" not in match.string[start : match.start()]
    elif kind == "cookie":
        is_example = True
    elif kind in ("secret value", "secret option", "URL parameter"):
        name = _find_name(before)
        # `base-passwd for Debian` has no option.
        if name.startswith("_") and match.string[match.start() - 1 : match.start()].isalnum():
            return False
        if kind == "secret option" and _SHORT_OPTION.fullmatch(name):
            is_example = is_example or value.isdigit()
        elif not _PASSWORD_NAME.search(name):
            if not _KEY_NAME.search(name):
                return False
            is_example = True
        if kind == "secret value" and not _is_whole_value(match, is_code):
            return False
    return _is_literal(value) and (_is_random(value) or not is_example)


def _find_name(before: str) -> str:
    """Return the name of a setting in lower case, with underscores between its words."""
    name = _NAME.search(before)
    words = _CAMEL_CASE.sub("_", name[1]) if name else ""
    return re.sub(r"[.-]+", "_", words).lower()


def _is_whole_value(match: re.Match[str], is_code: bool) -> bool:
    """Return whether a value is all that follows its name: `passwd: files systemd` is prose."""
    quoted = match[0][-1] in "\"'"
    if is_code:
        return quoted
    rest = match.string[match.end() : match.end() + _MAX_CONTEXT].partition("\n")[0].strip()
    return quoted or "=" in match[1][-4:] or not rest or rest[0] in ",#;})<"


def _is_literal(value: str) -> bool:
    if len(value) < 2 or re.search(r"\s", value) or _REFERENCE.match(value):
        return False
    return _is_random(value) or _PLACEHOLDER.match(value) is None


def _decode_base64(value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode(errors="replace")
    except binascii.Error:
        return ""


def _is_random(value: str) -> bool:
    """Return whether a value looks generated: long, with letters and digits."""
    return _RANDOM.fullmatch(value) is not None
