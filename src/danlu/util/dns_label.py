"""Labels of DNS, as Kubernetes requires them for names (k8s.io/apimachinery, util/validation)."""

from __future__ import annotations

import re

MAX_LABEL_LENGTH = 63
LABEL_HINT = "use lower-case letters, digits and '-', at most 63 characters"

#: RFC 1035, for names of Services; without the limit of the length.
DNS_1035 = re.compile("[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_1123 = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def is_dns_1035_label(text: str) -> bool:
    """Return whether ``text`` is a label that starts with a letter, as for Services."""
    return len(text) <= MAX_LABEL_LENGTH and DNS_1035.fullmatch(text) is not None


def is_dns_label(text: str) -> bool:
    """Return whether ``text`` is a DNS-1123 label, as for containers, volumes and namespaces."""
    return len(text) <= MAX_LABEL_LENGTH and _DNS_1123.fullmatch(text) is not None
