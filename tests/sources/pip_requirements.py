"""Answer, for the tests: what does pip read in a requirements file?

Reads one JSON object per line, ``{"directory": …, "environ": …}``, and writes one about the file
``requirements.txt`` there: its requirements and options, or ``{"refused": reason}``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

from pip._internal.exceptions import PipError
from pip._internal.index.collector import LinkCollector
from pip._internal.index.package_finder import PackageFinder
from pip._internal.models.format_control import FormatControl
from pip._internal.models.search_scope import SearchScope
from pip._internal.models.selection_prefs import SelectionPreferences
from pip._internal.network.session import PipSession
from pip._internal.req.constructors import install_req_from_parsed_requirement
from pip._internal.req.req_file import parse_requirements
from pip._internal.req.req_install import check_invalid_constraint_type


def list_requirements(finder: PackageFinder, session: PipSession) -> Iterator[dict[str, Any]]:
    for parsed in parse_requirements("requirements.txt", session, finder=finder):
        found = install_req_from_parsed_requirement(parsed)
        if parsed.constraint and check_invalid_constraint_type(found):
            raise PipError("not a constraint")
        if parsed.options and parsed.options.get("config_settings"):
            raise PipError("build settings of single packages are not supported by danlu")
        link = found.link
        yield {
            "name": (found.name or "").lower(),
            "specifier": str(found.req.specifier) if found.req and not link else "",
            "extras": sorted(found.extras),
            "url": link.url_without_fragment if link else "",
            "subdirectory": (link and link.subdirectory_fragment) or "",
            "link_hash": f"{link.hash_name}:{link.hash}" if link and link.hash else "",
            "applies": found.match_markers(),
            "constraint": parsed.constraint,
            "editable": parsed.is_editable,
            "hashes": [
                f"{name}:{value}" for name, values in found.hash_options.items() for value in values
            ],
        }


def read_file() -> dict[str, Any]:
    session = PipSession()
    scope = SearchScope.create(find_links=[], index_urls=["https://default.test/"], no_index=False)
    finder = PackageFinder.create(
        link_collector=LinkCollector(session=session, search_scope=scope),
        selection_prefs=SelectionPreferences(
            allow_yanked=True, format_control=FormatControl(set(), set())
        ),
    )
    try:
        requirements = list(list_requirements(finder, session))
    except (PipError, UnicodeError, LookupError, ValueError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    formats = finder.format_control
    return {
        "requirements": requirements,
        "indexes": finder.search_scope.index_urls,
        "find_links": finder.search_scope.find_links,
        "no_index": finder.search_scope.no_index,
        "pre": bool(finder.release_control and ":all:" in finder.release_control.all_releases),
        "formats": [sorted(formats.no_binary), sorted(formats.only_binary)],
    }


logging.disable()
for line in sys.stdin:
    question = json.loads(line)
    os.chdir(question["directory"])
    os.environ.clear()
    os.environ.update(question["environ"])
    print(json.dumps(read_file()), flush=True)
