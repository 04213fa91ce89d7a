"""Turn an environment and its lock into a build graph. Pure."""
