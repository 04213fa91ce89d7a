"""Everything that enters a build from outside: apt, git, HTTP, registries, PyPI, project files."""
