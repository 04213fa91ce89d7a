"""An error in a build.envd is reported once, with its position, line and nearest name."""

from __future__ import annotations

import pytest

from danlu.environment.requirements import requested_python_version
from danlu.errors import BuildFileError, DanluError, UsageError
from danlu.lang.evaluation import evaluate
from danlu.lang.source_files import RepositoryContent
from tests.lang.support import InMemoryLoader, body, finding, get_marked_text

# (a call, what the message says, what is marked, a word of the hint)
CALLS = [
    ("install.pyton()", "install has no function 'pyton'", "install.pyton()", "install.python"),
    ("install.zig()", "no function 'zig'", "install.zig()", "it has: apt_packages, codex"),
    (
        "install.pip_packages(['a'])",
        "install has no function 'pip_packages'",
        "install.pip_packages(['a'])",
        "install.python_packages",
    ),
    ("runtime.gpu(1)", "runtime has no function 'gpu'", "runtime.gpu(1)", "config.gpu"),
    ("python()", "name 'python' is not defined", "python", "install.python"),
    ("shel('zsh')", "name 'shel' is not defined", "shel", "'shell'"),
    ("data.path.huggingfac", "data.path has no", "data.path.huggingfac", "huggingface"),
    ("install.python(versio='3')", "has no argument 'versio'", "versio='3'", "version"),
    ("config.owner(uid=1)", "is missing its argument 'gid'", "config.owner(uid=1)", "(uid, gid)"),
    ("install.r_lang(1)", "takes no positional arguments", "1", ""),
    ("shell('zsh', 'x')", "at most 1 positional argument", "'x'", "in a list"),
    (
        "install.python('3.9', version='3.9')",
        "multiple values for argument 'version'",
        "version='3.9'",
        "",
    ),
    (
        "io.copy('a', host_path='b', target='c')",
        "multiple values for argument 'path'",
        "host_path='b'",
        "",
    ),
    ("io.copy('a', '/proc/x')", "/proc belongs to the kernel", "'/proc/x'", "/opt"),
    ("io.copy('a', 'srv/../dev')", "/dev belongs to the kernel", "'srv/../dev'", "/opt"),
    ("install.python(3.11)", "must be text, not a number", "3.11", 'write "3.11"'),
    ("install.python('2.7')", "invalid Python version '2.7'", "'2.7'", "3.11"),
    ("install.python_packages('numpy')", "not one string", "'numpy'", '["numpy"]'),
    ("install.apt_packages('a', 'b')", "at most 1 positional argument", "'b'", '["a", "b"]'),
    ("install.apt_packages(['a', 3])", "element 2 must be text", "['a', 3]", ""),
    ("install.apt_packages(['a b'])", "invalid package name 'a b'", "['a b']", ""),
    ("install.apt_packages([''])", "empty name", "['']", ""),
    (
        "install.python_packages(local_wheels=['a.zip'])",
        "'a.zip' is not a wheel",
        "local_wheels=['a.zip']",
        "",
    ),
    ("install.python_packages(['a --pree'])", "unsupported option --pree", None, "--pre"),
    ("install.python_packages(['a', '-U'])", "unsupported option -U", None, "danlu lock --upgrade"),
    ("install.python_packages(['-r', 'r.txt'])", "unsupported option -r", None, "requirements="),
    ("install.python_packages(['a -i'])", "the option -i needs a value", "['a -i']", ""),
    ("install.python_packages(['-f', '--pre'])", "the option -f needs a value", None, ""),
    ("install.python_packages(groups=['dev'])", "groups without pyproject", None, "pyproject="),
    ("install.python_packages(pyproject='p.txt')", "not a pyproject.toml", None, "requirements="),
    (
        "install.python_packages(pyproject='p.toml', extras=['a b'])",
        "invalid name 'a b'",
        "extras=['a b']",
        "",
    ),
    (
        "install.python_packages(['a'], constraints=['b @ https://u:s@x/b.whl'])",
        "invalid constraint 'b @ https://",
        None,
        "numpy<2",
    ),
    ("install.conda_packages(['a'], env_file='e')", "cannot be combined", "env_file='e'", ""),
    ("install.conda_packages(env_file='e.txt')", "not a YAML file", "env_file='e.txt'", ".yml"),
    (
        "install.conda_packages(env_file='pixi.toml')",
        "not a YAML file",
        "env_file='pixi.toml'",
        "export",
    ),
    ("install.conda_packages(['-c', 'x'])", "'-c' is an option", "['-c', 'x']", "channel="),
    ("install.conda_packages(['a'], channel=[''])", "empty channel", "channel=['']", ""),
    (
        "install.python_packages(requirements='e.yml')",
        "not a requirements file",
        "requirements='e.yml'",
        "conda_packages(env_file=",
    ),
    ("shell('zhs')", "not 'zhs'", "'zhs'", "'zsh'"),
    ("run('ls')", "not one string", "'ls'", '["ls"]'),
    ("run(['a'], mount_host=1)", "must be True or False", "mount_host=1", ""),
    ("run(['a'], secrets=['../x'])", "id '../x'", "secrets=['../x']", "--secret"),
    ("run(['a'], secrets=[{'id': 'a', 'tagret': 'b'}])", "no field 'tagret'", None, "target"),
    ("run(['a'], secrets=[{'id': 'a', 'target': '/b/../c'}])", "'/b/../c'", None, "absolute"),
    ("run(['a'], secrets=['a', 'a'])", "two secrets", None, ""),
    ("run(['a\\0'])", "NUL", "['a\\0']", ""),
    ("base(os='debian12', image='x')", "both os and image", "image='x'", ""),
    ("base(os='debain12')", "unknown distribution 'debain12'", "os='debain12'", "debian12"),
    ("base(language='pyhton3')", "unknown language", "language='pyhton3'", "python"),
    ("base(image='https://x/y')", "invalid image reference", "image='https://x/y'", ""),
    ("config.owner(70000, 1)", "from 0 to 65535", "70000", ""),
    ("config.owner('1', 1)", "must be a whole number", "'1'", "write 1"),
    ("config.owner(True, 1)", "must be a whole number", "True", ""),
    ("config.entrypoint([])", "no program", "[]", ""),
    ("config.pip_index('example.org')", "invalid URL", "'example.org'", "https://"),
    ("config.pip_index('')", "invalid URL", "''", "https://"),
    ("config.repo(' ')", "empty url", "' '", ""),
    ("io.http('file:///etc/passwd')", "invalid URL", "'file:///etc/passwd'", "https://"),
    ("io.http('https://x.org/')", "has no file name", "'https://x.org/'", "filename"),
    ("io.http('https://x.org/a', filename='../a')", "invalid file name", "filename='../a'", ""),
    (
        "io.http('https://x.org/a', checksum='md5:1')",
        "invalid checksum",
        "checksum='md5:1'",
        "sha256:",
    ),
    ("io.copy('', '/a')", "empty path", "''", ""),
    ("io.copy('a', '~/b')", "~ is not expanded", "'~/b'", '"/home/envd/b"'),
    ("runtime.environ({'A': 1})", "'A' must be text", "{'A': 1}", 'write "1"'),
    ("runtime.environ({'A B': '1'})", "invalid variable name 'A B'", "{'A B': '1'}", ""),
    ("runtime.environ(['A'])", "dictionary of strings, not a list", "['A']", ""),
    ("runtime.daemon(['a', 'b'])", "list of commands", "['a', 'b']", '[["program"'),
    ("runtime.expose(0)", "from 1 to 65535", "0", ""),
    ("runtime.expose(1, listen_addr='here')", "invalid IP address", "listen_addr='here'", "127"),
    ("data.envd('../x')", "invalid name", "'../x'", ""),
    ("install.python(build)", "a function cannot be an argument", "install.python(build)", ""),
    ("install.apt_packages(range(3))", "a range cannot be", None, ""),
    ("fail('no', 3)", "no 3", "fail('no', 3)", ""),
    ("1 // 0", "division by zero", "1 // 0", ""),
    ("[1][4]", "index 4 is out of range", "[1][4]", ""),
    ("{}['é'] + 'ü'", "not found", "{}['é']", ""),
    ("'a'.uper()", "type string has no attribute 'uper'", "'a'.uper()", "upper"),
    ("build(1)", "build() got 1 more positional arguments", "build(1)", ""),
    ("build(a=1)", "build() has no argument 'a'", "build(a=1)", ""),
    ("'' + 3", "`+` not supported", "'' + 3", ""),
]


@pytest.mark.parametrize(("call", "message", "mark", "hint"), CALLS, ids=[c[0] for c in CALLS])
def test_invalid_call_is_marked_with_a_suggestion(
    call: str, message: str, mark: str | None, hint: str
) -> None:
    with pytest.raises(BuildFileError) as caught:
        body(f"x = 'ä'\ny = 1; z = {call}")
    error = caught.value
    assert message in error.message
    assert hint in error.hint
    assert error.exit_code == 2
    assert error.span is not None
    assert (error.span.file, error.span.line) == ("build.envd", 3)
    assert error.source_line == f"    y = 1; z = {call}"
    assert mark is None or get_marked_text(caught.value) == mark


def test_conflicting_declaration_names_the_first() -> None:
    error = finding("def build():\n    install.python('3.9')\n    install.python('3.10')\n")
    assert "declared twice" in error.message
    assert "build.envd:2:5" in error.hint
    assert error.span is not None
    assert error.span.line == 3


def test_an_image_has_one_entrypoint() -> None:
    error = finding("def build():\n    config.sagemaker()\n    config.entrypoint(['a'])\n")
    assert "config.entrypoint() and config.sagemaker() both set the entrypoint" in error.message
    assert "build.envd:2:5" in error.hint


@pytest.mark.parametrize(
    ("python", "uv"), [("3.11", "3.12"), ("3.11", "3.11.2"), ("3.1", "3.11"), ("3.12.1", "3.1")]
)
@pytest.mark.parametrize("uv_first", [False, True])
def test_two_versions_of_python_are_named(python: str, uv: str, uv_first: bool) -> None:
    calls = [f'install.python("{python}")', f'install.uv("{uv}")']
    first, second = calls[::-1] if uv_first else calls
    error = finding(f"def build():\n    {first}\n    {second}\n")
    assert error.message.endswith(
        f"install.uv() names Python {uv}, but the environment has Python {python}"
    )
    assert "the first is at build.envd:2:5" in error.hint
    assert error.span is not None
    assert error.span.line == 3


@pytest.mark.parametrize(
    ("python", "uv"), [("3.12", ""), ("3.11.2", "3.11"), ("", "3.12"), ("3.12", "3.12")]
)
def test_uv_takes_the_python_of_the_environment(python: str, uv: str) -> None:
    calls = [f'install.python("{python}")', f'install.uv("{uv}")' if uv else "install.uv()"]
    for order in (calls, calls[::-1]):
        evaluated = body("\n".join(order))
        assert requested_python_version(evaluated) == (python or uv)


# (a file, what the message says, line, what is marked)
SYNTAX: list[tuple[str, str, int, str | None]] = [
    ("def build():\n    run(['a'\n", "'[' was never closed", 2, "["),
    ("def build(:\n    pass\n", "syntax error", 1, ":"),
    ("def build():\n    x = 'abc\n", "unterminated string literal", 2, None),
    ("def build():\n    x = 1\n   y = 2\n", "unindent", 3, None),
    (
        "def build():\n    while True:\n        pass\n",
        "'while' is not supported in build.envd",
        2,
        "while",
    ),
    ("import os\n", "'import' is not supported in build.envd", 1, "import"),
    ("class A:\n    pass\n", "'class' is not supported in build.envd", 1, "class"),
    ("def build():\n    x = {1, 2}\n", "unexpected ','", 2, ","),
    ("def build():\n    x = 2 ** 3\n", "unexpected '**'", 2, "**"),
    ("@x\ndef build():\n    pass\n", "invalid input `@`", 1, "@"),
    ("x = 1\0\n", "syntax error", 1, None),
]


@pytest.mark.parametrize(("text", "message", "line", "mark"), SYNTAX, ids=[s[1] for s in SYNTAX])
def test_a_syntax_error_is_marked(text: str, message: str, line: int, mark: str | None) -> None:
    error = finding(text)
    assert message in error.message
    assert "expected one of" not in error.message
    assert error.span is not None
    assert error.span.line == line
    assert mark is None or get_marked_text(error) == mark


@pytest.mark.parametrize("line", ["x = 2 ** 3", "@x\n    def f(): pass", "class A: pass"])
def test_a_construct_of_python_is_referred_to_build_py(line: str) -> None:
    assert "build.py" in finding(f"def build():\n    {line}\n").hint


def test_a_mistake_in_any_language_is_not_referred_to_build_py() -> None:
    assert finding("def build():\n    x = {1, 2}\n").hint == ""
    assert finding("def build(:\n    pass\n").hint == ""


def test_a_warning_of_python_is_not_the_syntax_error() -> None:
    assert "'**'" in finding('x = "\\d"\ny = 2 ** 3\n').message


@pytest.mark.parametrize(
    "name", ["all", "enumerate", "hasattr", "load", "reversed", "struct", "zip"]
)
def test_misspelt_builtin_is_suggested(name: str) -> None:
    with pytest.raises(BuildFileError) as caught:
        body(f"{name}_(1)")
    assert f"'{name}'" in caught.value.hint


def test_attribute_is_searched_where_the_error_is() -> None:
    with pytest.raises(BuildFileError) as caught:
        body("x = [struct(cpy=1).cpy, io.cpy]")
    assert "io has no function 'cpy'" in caught.value.message


def test_an_error_in_a_helper_names_its_caller() -> None:
    error = finding("def helper(v):\n    install.python(v)\n\ndef build():\n    helper(3)\n")
    assert error.span is not None
    assert error.span.line == 2
    assert error.details == ("called from build.envd:5: helper(3)",)


def test_first_invalid_call_is_reported_before_a_later_failure() -> None:
    error = finding("def build():\n    run('a')\n    fail('later')\n")
    assert "not one string" in error.message


def test_missing_function_error_lists_existing_functions() -> None:
    error = finding("def build_gpu():\n    pass\ndef serve():\n    pass\n", "biuld_gpu")
    assert "no build function 'biuld_gpu'" in error.message
    assert error.hint == "did you mean 'build_gpu'? build.envd has: build_gpu, serve"
    assert "def build():" in finding("").hint


def test_only_functions_without_arguments_are_build_functions() -> None:
    assert "requires arguments" in finding("def build(a):\n    pass\n").message
    assert "no build function" in finding("build = 3\n").message
    assert "no build function" in finding("x = 3\n", "x; fail()").message


def test_missing_file_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"build file 'no\.envd' not found"):
        evaluate("no.envd", loader=InMemoryLoader({}))


class UnreadableLoader:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def read(self, path: str) -> str:
        raise self.error

    def include(self, url: str, ref: str) -> RepositoryContent:
        raise self.error


@pytest.mark.parametrize("file", ["build.envd", "build.py"])
def test_unreadable_file_is_a_usage_error(file: str) -> None:
    for error in (
        PermissionError(13, "Permission denied"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "odd"),
    ):
        with pytest.raises(UsageError, match=file):
            evaluate(file, loader=UnreadableLoader(error))


# (what build.envd loads, what the message says)
LOADS = [
    ("load('/etc/passwd', 'x')", "invalid path"),
    ("load('gone.envd', 'x')", "file 'gone.envd' not found"),
    ("load('build.envd', 'x')", "circular load"),
    ("load('a.envd', 'x')", "circular load"),
    ("load('b.envd', 'y')", "load(): the file does not define 'y'"),
]


@pytest.mark.parametrize(("load", "message"), LOADS, ids=[load[0] for load in LOADS])
def test_invalid_load_is_refused(load: str, message: str) -> None:
    files = {
        "build.envd": f"x = 1\n{load}\ndef build():\n    pass\n",
        "a.envd": "load('c.envd', 'x')\n",
        "c.envd": "load('a.envd', 'x')\n",
        "b.envd": "x = 1\n",
    }
    with pytest.raises(DanluError) as caught:
        evaluate("build.envd", loader=InMemoryLoader(files))
    assert message in caught.value.message
    assert caught.value.span is not None
    assert caught.value.exit_code == 2


def test_an_error_in_a_loaded_file_is_placed_there() -> None:
    files = {"build.envd": "load('a.envd', 'x')\n", "a.envd": "x = 1\ny = x +\n"}
    with pytest.raises(DanluError) as caught:
        evaluate("build.envd", loader=InMemoryLoader(files))
    assert caught.value.span is not None
    assert (caught.value.span.file, caught.value.span.line) == ("a.envd", 2)
    assert caught.value.source_line == "y = x +"
