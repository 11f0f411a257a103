"""Which actors a selection has to light, from what they say of themselves."""

from __future__ import annotations

from pagedlab.scenes import Scene


def lit_for(scene: Scene, frame: int, **thing: str | int) -> set[str]:
    """Return the keys of the actors of a frame that are of a thing, hold it or are held by it."""
    [(kind, value)] = thing.items()
    found = set()
    for key, actor in scene.frames[frame].stage.items():
        data = actor.data
        if kind in data:
            same = data[kind] == value
        elif kind == "request":
            same = bool(data.get("holders")) and data.get("owner") == value
        else:
            same = kind == "block" and str(value) in str(data.get("blocks", "")).split()
        if same:
            found.add(key)
    return found
