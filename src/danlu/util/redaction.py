"""Remove secrets from text that leaves this machine, such as a bug report.

What is removed is replaced by ``***`` and counted by kind, so that it can be reported.
Redaction errs on the side of removing too much.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from danlu.util.urls import MASK

#: Words in the name of a variable, setting or option that has a secret as its value.
_SECRET_WORDS = (
    r"token(?!iz)|passw(?:or)?d|passphrase|secret|credential|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|auth[_-]?key|signing[_-]?key"
)
_SECRET_ENDINGS = r"_key|_pass|_pwd|_pat|_auth"
_SECRET_NAME = re.compile(rf"{_SECRET_WORDS}|(?:{_SECRET_ENDINGS})$", re.IGNORECASE)

#: Values shorter than this are not searched for everywhere: ``test`` would remove too much.
_MIN_VALUE_LENGTH = 6

_STRING = r"\"(?!\*\*\*)(?:[^\"\\\n]|\\.)+\"|'(?!\*\*\*)(?:[^'\\\n]|\\.)+'"
_NOT_MASKED = r"(?!\*\*\*)"
#: A literal that is not secret, or the start of an expression.
_NOT_SECRET = r"(?!\*\*\*|\"|'|(?:true|false|null|none)\b|[=\[{(])"


Replacement = str | Callable[[re.Match[str]], str]


def _mask_value(match: re.Match[str]) -> str:
    """Keep the quotes of a string, so that a build file stays valid."""
    first = match[0][len(match[1])]
    quote = first if first in "\"'" else ""
    return f"{match[1]}{quote}{MASK}{quote}"


def _compile_patterns() -> Iterator[tuple[str, re.Pattern[str], Replacement]]:
    """Yield kinds, patterns and replacements; repetitions have limits, so that time is linear."""
    kept = rf"\g<1>{MASK}"
    flags = re.IGNORECASE
    end = r"-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    begin = r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    yield "private key", re.compile(rf"{begin}(?:.*?{end}|.*\Z)", re.DOTALL), MASK
    header = (
        rf"((?:proxy-)?authorization[\"']?\s{{0,9}}+[:=]\s{{0,9}}+[\"']?){_NOT_MASKED}[^\"'\r\n]+"
    )
    yield "Authorization header", re.compile(header, flags), kept
    cookie = rf"((?:set-)?cookie[\"']?\s{{0,9}}+:\s{{0,9}}+[\"']?){_NOT_MASKED}[^\"'\r\n]+"
    yield "cookie", re.compile(cookie, flags), kept
    # A password may contain what should have been escaped; a port is not a password.
    password = r"(\b[A-Za-z][A-Za-z0-9+.-]{0,30}://)[^/?#\s\"'<>:@*]{0,255}:(?!\d{1,5}/)"
    password += r"[^\s\"'<>]{1,1024}@"
    yield "URL credentials", re.compile(password), rf"\g<1>{MASK}@"
    url = r"(\b[A-Za-z][A-Za-z0-9+.-]{0,30}://)(?!\*\*\*@|git@)[^/?#\s\"'<>]{1,4096}@"
    yield "URL credentials", re.compile(url), rf"\g<1>{MASK}@"
    words = rf"{_SECRET_WORDS}|signature|\bsig|\bjwt|\bkey"
    parameter = rf"([?&][\w.-]{{0,64}}(?:{words})=){_NOT_MASKED}[^&\s\"'<>]+"
    yield "URL parameter", re.compile(parameter, flags), kept
    names = "auth|identitytoken|registrytoken"
    login = rf"(\"(?:{names})\"\s{{0,9}}+:\s{{0,9}}+)\"{_NOT_MASKED}[^\"\n]+\""
    yield "registry login", re.compile(login, flags), rf'\g<1>"{MASK}"'
    after = r"(?=[ \t]*(?:$|login|password))"
    netrc = rf"(\b(?:login|account|password)[ \t]{{1,9}}+){_NOT_MASKED}\S+{after}"
    yield "netrc login", re.compile(netrc, re.MULTILINE), kept
    option = rf"--?[\w-]{{0,64}}(?:{_SECRET_WORDS})[\w-]{{0,64}}(?:[ \t]{{1,9}}+|=)"
    option = rf"({option})(?:{_STRING}|(?!-){_NOT_SECRET}\S+)"
    yield "secret option", re.compile(option, flags), _mask_value
    name = rf"\b[\w.-]{{0,64}}(?:(?:{_SECRET_WORDS})(?:[_-][\w-]{{0,64}})?|{_SECRET_ENDINGS})"
    assigned = rf"{name}[\"']?[ \t]{{0,9}}+(?:=>|[:=])[ \t]{{0,9}}+"
    value = rf"({assigned})(?:{_STRING}|{_NOT_SECRET}[^\s\"',;)}}\]]+)"
    yield "secret value", re.compile(value, flags), _mask_value
    token = (
        r"\b(?:gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_\w{20,255}|glpat-[\w-]{16,255}"
        r"|hf_[A-Za-z0-9]{16,255}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,255}"
        r"|xox[a-z]-[\w-]{10,255}|sk-[\w-]{20,255}|npm_[A-Za-z0-9]{20,255}|pypi-[\w-]{20,500}"
        r"|dckr_pat_[\w-]{10,255}|eyJ[\w-]{8,4096}\.[\w-]{8,4096}\.[\w-]{0,4096})"
    )
    yield "token", re.compile(token), MASK


_PATTERNS = tuple(_compile_patterns())


class SecretRedactor:
    """Removes secrets from texts, and counts what it removed from each by kind.

    ``environ`` is searched for variables whose name says that they are secret (``HF_TOKEN``); their
    values are removed wherever they occur.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        values = {
            value.strip()
            for name, value in environ.items()
            if is_secret_name(name) and len(value.strip()) >= _MIN_VALUE_LENGTH
        }
        self._values = sorted(values, key=len, reverse=True)
        #: What was removed, by the name of the text and the kind of secret.
        self.removed: dict[str, Counter[str]] = {}

    def redact_text(self, name: str, text: str) -> str:
        """Return ``text`` without secrets; ``name`` says in ``removed`` what it is."""
        counts: Counter[str] = Counter()
        for value in self._values:
            if value in text:
                counts["value of a secret variable"] += text.count(value)
                text = text.replace(value, MASK)
        for kind, pattern, replacement in _PATTERNS:
            text, number = pattern.subn(replacement, text)
            counts[kind] += number
        counts = +counts
        if counts:
            self.removed[name] = self.removed.get(name, Counter()) + counts
        return text

    def redact_values(self, name: str, value: object) -> object:
        """Return plain data (mappings, lists, tuples, strings) without secrets."""
        if isinstance(value, str):
            return self.redact_text(name, value)
        if isinstance(value, list | tuple):
            return [self.redact_values(name, item) for item in value]
        if not isinstance(value, Mapping):
            return value
        values: dict[object, object] = {}
        for key, item in value.items():
            if isinstance(item, str) and item and is_secret_name(str(key)):
                self.removed.setdefault(name, Counter())["secret value"] += 1
                item = MASK
            values[self.redact_values(name, key)] = self.redact_values(name, item)
        return values

    def redact_variables(
        self, name: str, environ: Mapping[str, str], chosen: Iterable[str]
    ) -> dict[str, str]:
        """Return the variables ``chosen``, without the values of secret ones."""
        found: dict[str, str] = {}
        for variable in sorted(chosen):
            if is_secret_name(variable) and environ[variable]:
                found[variable] = MASK
                self.removed.setdefault(name, Counter())["value of a secret variable"] += 1
            else:
                found[variable] = self.redact_text(name, environ[variable])
        return found


def is_secret_name(name: str) -> bool:
    """Return whether a variable's name says that its value is secret."""
    return _SECRET_NAME.search(name) is not None


def find_key_or_token(text: str) -> str:
    """Return the kind of the first secret in ``text`` that has its own form, else nothing.

    Passwords have none: what looks like one is in many files that are not secret.
    """
    kinds = ("private key", "token", "registry login")
    found = (kind for kind, pattern, _ in _PATTERNS if kind in kinds and pattern.search(text))
    return next(found, "")
