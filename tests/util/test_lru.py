from __future__ import annotations

from danlu.util.lru import LRUCache


def test_oldest_entry_is_evicted_first() -> None:
    recent: LRUCache[str, int] = LRUCache(2)
    recent.put("a", 1)
    recent.put("b", 2)
    recent.put("a", 3)
    recent.put("c", 4)
    assert (recent.get("a"), recent.get("b"), recent.get("c")) == (3, None, 4)
    recent.discard("a")
    recent.discard("a")
    assert "a" not in recent
    assert "c" in recent
