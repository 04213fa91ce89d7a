"""Random ``devcontainer.json`` files mean what ``@devcontainers/cli`` says, or are refused, or the
key is listed.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from danlu.convert.devcontainer import read_devcontainer
from danlu.convert.draft import BuildFileDraft
from danlu.errors import UsageError

CLI = "@devcontainers/cli@0.89.0"
DRIVER = Path(__file__).with_name("devcontainer_answers.js")

TEXTS = (
    *(
        "",
        "a",
        "a b",
        "é",
        "//x",
        "/* x */",
        ",]",
        ",}",
        "\\",
        "\t",
        "'",
        '"',
        "$",
        "$$",
        "{}",
        "}",
    ),
    *("${containerWorkspaceFolder}", "${containerWorkspaceFolderBasename}/b", "${nope}", "${}"),
    *("${localWorkspaceFolderBasename}", "${localWorkspaceFolder}/x", "${localEnv:HOME}", "${"),
    *("${localEnv:NOPE}", "${localEnv:NOPE:d}", "${localEnv:NOPE:http://h:1}", "${env:NOPE:a}"),
    *("${containerEnv:PATH}", "/opt/b:${containerEnv:PATH}", "${devcontainerId}", "${localEnv}"),
    *("${ containerWorkspaceFolder }", "${containerWorkspaceFolder:d}", "$ {x}", "{a}"),
    *("${containerworkspacefolder}", "${localEnv:${localEnv:HOME}}", "${containerWorkspaceFolder"),
)
PLAIN_TEXTS = [text for text in TEXTS if "${" not in text or "WorkspaceFolder}" in text]
NUMBERS = (
    *("0", "1", "-1", "1.0", "0.5", "-0.0", "1e3", "1E21", "1e-7", "1e16", "123456789012345680000"),
    *("0.000001", "1.10", "9007199254740993", "1e400", "-0", "100000000000000000000.0", "8888"),
)
OTHERS = ("true", "false", "null", "[]", "{}", "[1, null]", '{"a": "b"}', "NaN", "Infinity", "01")
NAMES = ("A", "B", "PATH", "a-b", "", "${localEnv:HOME}", "é", "NODE_ENV")
KEYS = (
    *("image", "image", "containerEnv", "containerEnv", "containerEnv", "remoteEnv", "remoteEnv"),
    *("extensions", "customizations", "forwardPorts", "appPort", "hostRequirements", "name"),
    *("onCreateCommand", "postCreateCommand", "updateContentCommand", "postStartCommand"),
)


class FileWriter:
    """Writes a random file: values that the reader knows, in every spelling of JSON."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._is_odd = chance.random() < 0.2

    def write(self) -> str:
        keys = {"image": None} | {self._chance.choice(KEYS): None for _ in range(4)}
        pairs = [(self._quote(key), self._write_key(key)) for key in keys]
        if self._is_odd and self._chance.random() < 0.2:
            pairs.append(self._chance.choice(pairs))
        text = self._write_object(pairs)
        if self._is_odd and self._chance.random() < 0.5:  # such as a missing comma or brace
            place = self._chance.randrange(len(text))
            odd = self._chance.choice(["", "", ",", "/*", "//", '"', "\x01", "'", "{", "\\", "]"])
            text = text[:place] + odd + text[place + 1 :]
        return self._chance.choice(("", "", "", "\ufeff")) + text + self._blank()

    def _blank(self) -> str:
        odd = ("\n// note\n", "/* a\n b */", "/**/", "//\n", "/* ' \" */", "\r\n", "\t")
        more = ["\f", "\u00a0", "\u2028"] if self._is_odd and self._chance.random() < 0.05 else []
        return self._chance.choice(["", "", " ", "\n", *odd, *more])

    def _quote(self, text: str) -> str:
        if self._chance.random() < 0.2:
            text = "".join(f"\\u{ord(char):04x}" for char in text)
            return f'"{text}"'
        return json.dumps(text, ensure_ascii=self._chance.random() < 0.5)

    def _write_list(self, items: list[str]) -> str:
        end = "," if items and self._chance.random() < 0.4 else ""
        parts = [f"{self._blank()}{item}{self._blank()}" for item in items]
        return f"[{','.join(parts)}{end}{self._blank()}]"

    def _write_object(self, pairs: list[tuple[str, str]]) -> str:
        end = "," if pairs and self._chance.random() < 0.4 else ""
        parts = [
            f"{self._blank()}{name}{self._blank()}:{self._blank()}{value}{self._blank()}"
            for name, value in pairs
        ]
        return f"{{{','.join(parts)}{end}{self._blank()}}}"

    def _write_text(self) -> str:
        count = self._chance.choice((1, 1, 2, 3))
        texts = TEXTS if self._chance.random() < 0.3 else PLAIN_TEXTS
        return self._quote("".join(self._chance.choice(texts) for _ in range(count)))

    def _write_value(self) -> str:
        kind = self._chance.random()
        if kind < 0.7:
            return self._write_text()
        return self._chance.choice(NUMBERS if kind < 0.9 else OTHERS)

    def _write_key(self, key: str) -> str:
        if self._is_odd and self._chance.random() < 0.1:
            return self._write_value()
        values = [self._write_value() for _ in range(self._chance.randint(0, 3))]
        texts = [self._write_text() for _ in values]
        if key.endswith("Env"):
            names = self._chance.sample(NAMES, len(values))
            return self._write_object([(self._quote(name), self._write_value()) for name in names])
        if key == "extensions":
            return self._write_list(texts)
        if key == "customizations":
            extensions = [('"extensions"', self._write_list(texts))]
            return self._write_object([('"vscode"', self._write_object(extensions))])
        if key in ("forwardPorts", "appPort"):
            ports = ("8888", '"6006"', '"localhost:70"', '"db:5432"', '"9:10"', '"x"', "80.0", "7")
            return self._write_list([self._chance.choice(ports) for _ in values])
        if key == "hostRequirements":
            needed = self._chance.choice(("true", '"optional"', "false"))
            return self._write_object([('"gpu"', needed)])
        if key.endswith("Command"):
            named = [(f'"{number}"', text) for number, text in enumerate(texts)]
            return self._chance.choice(
                [self._write_text(), self._write_list(texts), self._write_object(named)]
            )
        return self._quote("debian:12") if self._chance.random() < 0.9 else self._write_text()


def read_as_danlu(directory: Path) -> BuildFileDraft | None:
    draft = BuildFileDraft()
    try:
        read_devcontainer(directory / ".devcontainer/devcontainer.json", directory, draft)
    except (UsageError, UnicodeDecodeError):
        return None
    return draft


class AnswerComparison:
    """Compares a draft with what the CLI says of the same file; ``listed`` counts listed keys."""

    def __init__(self, draft: BuildFileDraft, right: dict[str, Any]) -> None:
        # danlu's project is at /workspace; the directories of the files have that name, too.
        self._right = json.loads(json.dumps(right).replace("/workspaces/workspace", "/workspace"))
        self._draft = draft
        self.listed = 0

    def check(self) -> None:
        assert self._draft.image == self._right["image"]
        self._check_environment()
        self._check_extensions()
        self._check_ports()
        self._check_commands()
        gpu = (self._right.get("hostRequirements") or {}).get("gpu")
        assert bool(self._find_calls("config.gpu")) == (gpu is True)
        assert gpu in (None, True) or self._is_listed("hostRequirements.gpu")

    def _is_listed(self, key: str) -> bool:
        found = any(line.startswith(f"{key}: ") for line in self._draft.untranslated)
        self.listed += found
        return found

    def _find_calls(self, function: str) -> list[tuple[Any, ...]]:
        return [call.arguments for call in self._draft.calls if call.function == function]

    def _check_environment(self) -> None:
        environment = dict(self._draft.environment)
        for key in ("remoteEnv", "containerEnv"):  # the first one wins
            for name, value in (self._right.get(key) or {}).items():
                if name == "PATH" and value.endswith(":${containerEnv:PATH}"):
                    path = ":".join((*self._draft.extra_path, "${containerEnv:PATH}"))
                    assert path == value or self._is_listed(f"{key}.{name}")
                elif name in environment:
                    assert environment.pop(name) == value or self._is_listed(f"{key}.{name}")
                elif key == "remoteEnv" or name not in self._right.get("remoteEnv", {}):
                    assert self._is_listed(f"{key}.{name}"), name
        assert not environment

    def _check_extensions(self) -> None:
        customized = (self._right.get("customizations") or {}).get("vscode") or {}
        names = customized.get("extensions", [])
        found = [
            name for (names,) in self._find_calls("install.vscode_extensions") for name in names
        ]
        for name in map(str, names):
            keys = ("extensions", "customizations.vscode.extensions")
            assert name in found or any(map(self._is_listed, keys)), name
        assert set(found) <= {*map(str, names)}

    def _check_ports(self) -> None:
        found = self._find_calls("runtime.expose")
        for key in ("forwardPorts", "appPort"):
            ports = self._right.get(key, [])
            for port in ports if isinstance(ports, list) else [ports]:
                numbers = [int(number) for number in str(port).split(":") if number.isdecimal()]
                exposed = bool(numbers) and any(call[0] == numbers[-1] for call in found)
                assert exposed or self._is_listed(key), port
        assert not found or "forwardPorts" in self._right or "appPort" in self._right

    def _check_commands(self) -> None:
        commands = [command for (values,) in self._find_calls("runtime.init") for command in values]
        for key in [key for key in KEYS if key.endswith("Command")]:
            value = self._right.get(key)
            named = value.items() if isinstance(value, dict) else [("", value)]
            for name, command in named:
                script = shlex.join(command) if isinstance(command, list) else command or ""
                if script.strip() and f"\n{script}\n" not in "".join(f"\n{c}\n" for c in commands):
                    assert self._is_listed(f"{key}.{name}" if name else key), script


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.needs("npm")
@pytest.mark.timeout(1800)
def test_4000_random_files_mean_what_the_cli_says_or_are_refused_or_listed(tmp_path: Path) -> None:
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]
    subprocess.run([*install, tmp_path, CLI], check=True, stdout=subprocess.DEVNULL)
    program = tmp_path / "node_modules/@devcontainers/cli/dist/spec-node/devContainersSpecCLI.js"
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\n")
    docker.chmod(0o755)
    chance = random.Random(7)
    counts = Counter[str]()
    for batch in range(8):  # the program grows with each file
        directories = [tmp_path / f"{batch}-{number}" / "workspace" for number in range(500)]
        for directory in directories:
            (directory / ".devcontainer").mkdir(parents=True)
            file = directory / ".devcontainer/devcontainer.json"
            file.write_text(FileWriter(chance).write(), encoding="utf-8", newline="")
        done = subprocess.run(
            ["node", DRIVER, program, docker],
            input=json.dumps(list(map(str, directories))),
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            capture_output=True,
            check=True,
            text=True,
        )
        for directory, right in zip(directories, json.loads(done.stdout), strict=True):
            draft = read_as_danlu(directory)
            text = (directory / ".devcontainer/devcontainer.json").read_text(encoding="utf-8")
            if draft is None:
                counts["refused"] += 1
                continue
            if right is None:  # a variable without a name
                assert any("${" in line for line in draft.untranslated), text
                continue
            comparison = AnswerComparison(draft, right)
            try:
                comparison.check()
            except AssertionError as error:
                error.add_note(f"{text}\n{right}\n{draft}")
                raise
            counts["listed" if comparison.listed else "same"] += 1
    assert min(counts.values()) > 500, counts
