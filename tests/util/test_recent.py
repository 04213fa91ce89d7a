from __future__ import annotations

from danlu.util.recent import Recent


def test_the_oldest_is_forgotten_first() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    recent.put("a", 3)
    recent.put("c", 4)
    assert (recent.get("a"), recent.get("b"), recent.get("c")) == (3, None, 4)
    recent.forget("a")
    recent.forget("a")
    assert "a" not in recent
    assert "c" in recent
