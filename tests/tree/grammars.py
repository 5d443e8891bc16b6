"""Grammars whose trees differ in every way that matters to what walks them."""

from __future__ import annotations

from assay.tree.prefix import Grammar


def uneven(prefix: tuple[int, ...]) -> tuple[int, ...]:
    """Between one and all of four tokens, out of order, different from prefix to prefix."""
    shift = sum((place + 2) * token for place, token in enumerate(prefix))
    return tuple((shift + 3 * step) % 4 for step in range(1 + shift % 4))


GRAMMARS = {
    "one token": Grammar(tokens=4, max_length=1),
    "fixed length": Grammar(tokens=3, max_length=3),
    "narrow and long": Grammar(tokens=2, max_length=7),
    "several lengths": Grammar(tokens=3, max_length=4, end=1),
    "end token alone": Grammar(tokens=1, max_length=3, end=0),
    "end token never": Grammar(tokens=2, max_length=3, end=1, allowed=lambda prefix: (0,)),
    "no repeated token": Grammar(3, 4, allowed=lambda prefix: tuple(t for t in range(3) if t not in prefix[-1:])),
    "forced second token": Grammar(3, 3, end=2, allowed=lambda prefix: (1,) if len(prefix) == 1 else (0, 1, 2)),
    "uneven": Grammar(4, 5, allowed=uneven),
    "uneven, several lengths": Grammar(4, 5, end=3, allowed=uneven),
}
