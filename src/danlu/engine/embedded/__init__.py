"""danlu's own engine: containers without a daemon, in namespaces of their supervisor."""
