"""A project's build file: load, lock, plan and build it, and edit its packages."""
