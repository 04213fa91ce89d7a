"""Running environments: on this machine without a daemon (:mod:`danlu.engine.embedded`)."""
