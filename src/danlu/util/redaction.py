"""Remove secrets from text that leaves this machine, such as a bug report.

What is removed is replaced by ``***`` and counted by kind, so that it can be reported.
Redaction errs on the side of removing too much.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from danlu.util.urls import MASK

#: Words in the name of a variable, setting or option that has a secret as its value.
_SECRET_WORDS = (
    r"token(?!iz)|passw(?:or)?d|passphrase|secret(?:[_-]?key)?|credential|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|auth[_-]?key|signing[_-]?key|bearer"
)
_SECRET_ENDINGS = r"_key|_pass|_pwd|_pat|_auth"
_SECRET_NAME = re.compile(rf"{_SECRET_WORDS}|(?:{_SECRET_ENDINGS})$", re.IGNORECASE)

#: Values shorter than this are not searched for everywhere: ``test`` would remove too much.
_MIN_VALUE_LENGTH = 6

#: Joins the words of a command in :meth:`SecretRedactor.redact_values`; whitespace for ``\\s``.
_WORD_SEPARATOR = "\x1f"

_STRING = r"\"(?!\*\*\*)(?:[^\"\\\n\x1f]|\\.)+\"|'(?!\*\*\*)(?:[^'\\\n\x1f]|\\.)+'"
#: Between an option and its value, also in JSON and Python (``["curl", "-u", "me:…"]``).
_GAP = r"(?:[ \t\x1f]{1,9}+|=|[\"'][ \t]{0,9}+,[ \t]{0,9}+(?=[\"']))"
#: Nothing between them either; the end of a word in JSON is not the start of a value.
_MAY_HAVE_GAP = rf"(?:{_GAP}|(?![\"'][ \t]*[,\]]))"
#: A value of an option that may be quoted.
_VALUE = rf"(?:{_STRING}|(?!\*\*\*|[\"'])[^\s\"']+)"

#: Programs whose option with one letter is a password, and the letter.
_PASSWORD_OPTIONS = (
    (r"(?:mysql|mariadb|mongo)[\w-]{0,30}|sshpass|7z[ar]?", "p"),
    (
        r"(?:docker|podman|nerdctl|buildah|skopeo|helm|oras|crane|regctl|az|oc)\b[^\n;|&]{0,80}?"
        r"\blogin",
        "p",
    ),
    (r"redis-cli", "a"),
    (r"unzip|zip|sqlcmd", "P"),
    (r"ldap[a-z]{1,20}", "w"),
)
_NOT_MASKED = r"(?!\*\*\*)"
#: A literal that is not secret, or the start of an expression.
_NOT_SECRET = r"(?!\*\*\*|\"|'|(?:true|false|null|none)\b|[=\[{(])"


Replacement = str | Callable[[re.Match[str]], str]


def _mask_value(match: re.Match[str]) -> str:
    """Keep the quotes of a string, so that a build file stays valid."""
    first = match[0][len(match[1])]
    quote = first if first in "\"'" else ""
    return f"{match[1]}{quote}{MASK}{quote}"


_KEY_LINE = r"-----{} [A-Z0-9 ]{{0,30}}PRIVATE KEY(?: BLOCK)?-----"
_KEY_BEGIN, _KEY_END = _KEY_LINE.format("BEGIN"), _KEY_LINE.format("END")
_SCHEME = r"(\b[A-Za-z][A-Za-z0-9+.-]{0,30}://)"
# As a word within a line, `login` is a command of docker.
_ACCOUNT = r"(?:^[ \t]*|\bmachine[ \t]{1,9}+\S{1,255}[ \t]{1,9}+)(?:login|account)"
# ``-u NAME:PASSWORD`` of curl, ``-U NAME%PASSWORD`` of smbclient. ``1000:1000`` and ``app:app`` are
# the user and group of a container, ``+%Y`` is a format of date.
_USER_OPTION = rf"(?<![\w-])(?:-[a-z]{{0,9}}u{_GAP}|-u|--(?:proxy-)?user{_GAP})"
_USER_NAME = (
    r"(?!\d+:\d+(?!\w))(?P<name>[^\s\"':%=/,+-][^\s\"':%=/,]{0,255})[:%](?!//|(?P=name)(?!\w))"
)
_VARIABLE = rf"\b[\w.-]{{0,64}}(?:(?:{_SECRET_WORDS})(?:[_-][\w-]{{0,64}})?|{_SECRET_ENDINGS})"
_ASSIGNMENT = rf"{_VARIABLE}(?:[\"']\]?)?[ \t]{{0,9}}+(?:=>|[:=])[ \t]{{0,9}}+"

#: Patterns by kind of secret. Group 1 is what stays. Repetitions have limits: time is linear.
_PATTERNS: Mapping[str, tuple[str, ...]] = {
    "private key": (
        rf"(?s){_KEY_BEGIN}(?:.*?{_KEY_END}|.*\Z)",
        # The beginning of such a key in base64, as in kubeconfigs.
        r"LS0tLS1CRUdJTi(?:BQUklW|BSU0Eg|BFQyBQ|BPUEVO|BFTkNS|BEU0Eg)[A-Za-z0-9+/=]{1,65536}",
        r"\bAGE-SECRET-KEY-1[A-Z0-9]{20,255}",
    ),
    "Authorization header": (
        rf"(?i)((?:proxy-)?authorization[\"']?\s{{0,9}}+[:=]\s{{0,9}}+[\"']?){_NOT_MASKED}"
        r"[^\"'\r\n\x1f]+",
        rf"(?i)(\bbearer[ \t]{{1,9}}+){_NOT_MASKED}(?=[^\s\"']{{0,4096}}\d)[\w.~+/=-]{{8,}}",
    ),
    "cookie": (
        rf"(?i)((?:set-)?cookie[\"']?\s{{0,9}}+:\s{{0,9}}+[\"']?){_NOT_MASKED}[^\"'\r\n\x1f]+",
    ),
    "URL credentials": (
        # A password may contain what should have been escaped; a port is not a password.
        rf"{_SCHEME}[^/?#\s\"'<>:@*]{{0,255}}:(?!\d{{1,5}}/)[^\s\"'<>]{{1,1024}}(?=@)",
        rf"{_SCHEME}(?!\*\*\*@|git@)[^/?#\s\"'<>]{{1,4096}}(?=@)",
    ),
    "channel token": (  # conda's form: https://host/t/TOKEN/channel
        rf"(\bhttps?://[^\s\"'<>/]{{1,255}}/t/){_NOT_MASKED}[A-Za-z0-9-]{{4,255}}(?=/)",
    ),
    "URL parameter": (
        rf"(?i)([?&][\w.-]{{0,64}}(?:{_SECRET_WORDS}|signature|\bsig|\bjwt|\bkey)=)"
        rf"{_NOT_MASKED}[^&\s\"'<>]+",
    ),
    "registry login": (
        r"(?i)(\"(?:auth|identitytoken|registrytoken)\"\s{0,9}+:\s{0,9}+\")"
        rf"{_NOT_MASKED}[^\"\n]+(?=\")",
    ),
    "netrc login": (
        rf"(?m)((?:{_ACCOUNT}|\bpassword)[ \t]{{1,9}}+){_NOT_MASKED}\S+"
        r"(?=[ \t]*(?:$|login|password))",
    ),
    "user's password": tuple(
        rf"(?i)({_USER_OPTION}{quote}{_USER_NAME}){_NOT_MASKED}{password}"
        for quote, password in (("", r"[^\s\"']+"), ("'", r"[^'\n\x1f]+"), ('"', r"[^\"\n\x1f]+"))
    ),
    "secret option": (
        *(
            rf"(\b(?:{programs})\b(?:(?![\s\"']-{letter})[^\n;|&]){{0,400}}[\s\"']-{letter}"
            rf"{_MAY_HAVE_GAP}){_VALUE}"
            for programs, letter in _PASSWORD_OPTIONS
        ),
        rf"(\becho[ \t]{{1,9}}+(?:-n[ \t]{{1,9}}+)?){_VALUE}(?=[ \t]*\|[^\n|]{{0,400}}-stdin)",
        rf"(-pass(?:in|out)?{_GAP}[\"']?pass:){_NOT_MASKED}[^\s\"']+",
        rf"(?i)(--?[\w-]{{0,64}}(?:{_SECRET_WORDS})[\w-]{{0,64}}{_GAP})"
        rf"(?:{_STRING}|(?!-){_NOT_SECRET}\S+)",
    ),
    "secret value": (
        rf"(?i)({_ASSIGNMENT})(?:{_STRING}|{_NOT_SECRET}[^\s\"',;)}}\]]+)",
        rf"(?i)(<[\w.:-]{{0,64}}(?:{_SECRET_WORDS})>\s{{0,9}}+)(?![\"']?\*\*\*)[^<>\s]+"
        r"(?=\s{0,9}</)",
    ),
    "token": (
        r"\b(?:gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_\w{20,255}|glpat-[\w-]{16,255}"
        r"|hf_[A-Za-z0-9]{16,255}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,255}"
        r"|xox[a-z]-[\w-]{10,255}|xapp-[\w-]{10,255}|sk-(?!ssh-|ecdsa-)[\w-]{20,255}"
        r"|npm_[A-Za-z0-9]{20,255}|pypi-[\w-]{20,500}"
        r"|dckr_pat_[\w-]{10,255}|gl(?:ptt|dt|rt|soat|ft|imt|agent)-[\w-]{16,255}"
        r"|[sr]k_(?:live|test)_[A-Za-z0-9]{16,255}|SG\.[\w-]{16,64}\.[\w-]{16,128}"
        r"|ya29\.[\w-]{20,2048}|(?:nvapi|tskey)-[\w-]{20,255}|gsk_[A-Za-z0-9]{20,255}"
        r"|r8_[A-Za-z0-9]{30,64}|hvs\.[\w-]{20,255}|dapi[0-9a-f]{32}|dop_v1_[0-9a-f]{64}"
        r"|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|eyJ[\w-]{8,4096}\.[\w-]{8,4096}\.[\w-]{0,4096})",
    ),
}
_REPLACEMENTS: Mapping[str, Replacement] = {
    **dict.fromkeys(("private key", "token"), MASK),
    **dict.fromkeys(("secret option", "secret value"), _mask_value),
}

#: Kinds of secrets, patterns for them, and what replaces a match.
SECRET_PATTERNS = tuple(
    (kind, re.compile(pattern), _REPLACEMENTS.get(kind, rf"\g<1>{MASK}"))
    for kind, patterns in _PATTERNS.items()
    for pattern in patterns
)


class SecretRedactor:
    """Removes secrets from texts, and counts what it removed from each by kind.

    ``environ`` is searched for variables whose name says that they are secret (``HF_TOKEN``); their
    values are removed wherever they occur.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._values = find_secret_values(environ)
        #: What was removed, by the name of the text and the kind of secret.
        self.removed: dict[str, Counter[str]] = {}

    def redact_text(self, name: str, text: str) -> str:
        """Return ``text`` without secrets; ``name`` says in ``removed`` what it is."""
        counts: Counter[str] = Counter()
        for value in self._values:
            if value in text:
                counts["value of a secret variable"] += text.count(value)
                text = text.replace(value, MASK)
        for kind, pattern, replacement in SECRET_PATTERNS:
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
            return self._redact_list(name, value)
        if not isinstance(value, Mapping):
            return value
        values: dict[object, object] = {}
        for key, item in value.items():
            if isinstance(item, str) and item and is_secret_name(str(key)):
                self.removed.setdefault(name, Counter())["secret value"] += 1
                item = MASK
            values[self.redact_values(name, key)] = self.redact_values(name, item)
        return values

    def _redact_list(self, name: str, values: Sequence[object]) -> list[object]:
        """Return a list without secrets; the words of a command say what the next one is."""
        texts = [value for value in values if isinstance(value, str)]
        if len(texts) == len(values) and not any(_WORD_SEPARATOR in text for text in texts):
            joined = self.redact_text(name, _WORD_SEPARATOR.join(texts)).split(_WORD_SEPARATOR)
            if len(joined) == len(texts):
                return list(joined)
        return [self.redact_values(name, value) for value in values]

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


def find_secret_values(environ: Mapping[str, str]) -> list[str]:
    """Return the values of secret variables, unless they are short, the longest first."""
    values = {value.strip() for name, value in environ.items() if is_secret_name(name)}
    return sorted(
        (value for value in values if len(value) >= _MIN_VALUE_LENGTH), key=len, reverse=True
    )


def is_secret_name(name: str) -> bool:
    """Return whether a variable's name says that its value is secret."""
    return _SECRET_NAME.search(name) is not None
