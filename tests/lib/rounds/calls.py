"""What workers and oracle have in common."""

import functools
import hashlib

CHANGES = ("mkdir", "create", "write", "truncate", "rename", "link", "unlink")


@functools.lru_cache(maxsize=200)
def content(key, size):
    """The bytes that a write of this key writes."""
    return hashlib.shake_128(key.encode()).digest(size)
