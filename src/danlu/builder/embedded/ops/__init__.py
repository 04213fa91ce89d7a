"""How the embedded builder does each op: one module an op, each with ``execute(op, context)``."""
