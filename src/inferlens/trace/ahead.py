"""Makes what comes next while what came before is worked on: unpacking waits for nothing that decoding holds."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
_AHEAD = 8  # blocks of text, 4 MiB together: with fewer, decoding waits for unpacking now and then
_PATIENCE = 0.1


class _End:
    """After the last item: the error that ended them, if one did."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


@contextmanager
def ahead(items: Iterator[Item]) -> Iterator[Iterator[Item]]:
    """The same items, of which up to eight are made beforehand, by a thread; it ends with the block.

    What goes wrong there is raised where the item is asked for.
    """
    made: queue.Queue[Item | _End] = queue.Queue(maxsize=_AHEAD)
    enough = threading.Event()

    def put(item: Item | _End) -> bool:
        while not enough.is_set():
            try:
                made.put(item, timeout=_PATIENCE)
                return True
            except queue.Full:
                continue
        return False

    def make() -> None:
        try:
            for item in items:
                if not put(item):
                    return
        except BaseException as error:
            put(_End(error))
        else:
            put(_End())

    threading.Thread(target=make, daemon=True).start()
    try:
        yield _taken(made)
    finally:
        enough.set()


def _taken(made: queue.Queue[Item | _End]) -> Iterator[Item]:
    while True:
        item = made.get()
        if isinstance(item, _End):
            if item.error:
                raise item.error
            return
        yield item
