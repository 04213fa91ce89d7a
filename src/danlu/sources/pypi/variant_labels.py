"""The label of a variant in a wheel's file name (PEP 825, "Variant label")."""

from __future__ import annotations

#: Name, version and three tags.
_PARTS = 5


def split_variant_label(file: str) -> tuple[str, str]:
    """Return a wheel's file name without the label of its variant, and the label.

    The label is empty for a file name without one. A build tag, which comes after the version,
    starts with a digit, and a Python tag does not.
    """
    parts = file.removesuffix(".whl").split("-")
    count = _PARTS + (len(parts) > _PARTS and parts[2][:1].isdigit())
    if not file.endswith(".whl") or len(parts) != count + 1:
        return file, ""
    return f"{'-'.join(parts[:-1])}.whl", parts[-1]
