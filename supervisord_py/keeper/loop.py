"""The keeper's one loop: descriptors that became ready and timers that fell due, one callback at a time.

Nothing else wakes it, so an idle keeper sleeps. A callback that raises is reported and the loop goes on: one broken
child must not take down the holder of all others. Times are monotonic seconds.
"""

from __future__ import annotations

import heapq
import selectors
import time
from collections.abc import Callable

Callback = Callable[[], object]


class Timer:
    def __init__(self, when: float, callback: Callback | None) -> None:
        self.when = when
        self.callback = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._selector = selectors.DefaultSelector()
        self._heap: list[tuple[float, int, Timer]] = []
        self._sequence = 0
        self._running = False
        self._on_error = on_error

    @staticmethod
    def now() -> float:
        return time.monotonic()

    def watch(self, fd: int, readable: Callback | None, writable: Callback | None = None) -> None:
        """Call back whenever `fd` is ready, until `unwatch(fd)`; replaces an earlier watch of the same descriptor."""
        events = (selectors.EVENT_READ if readable else 0) | (selectors.EVENT_WRITE if writable else 0)
        change = self._selector.modify if fd in self._selector.get_map() else self._selector.register
        change(fd, events, (readable, writable))

    def unwatch(self, fd: int) -> None:
        """Forget `fd`, watched or not. To be called before the descriptor is closed."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def later(self, seconds: float, callback: Callback) -> Timer:
        """Call back once, `seconds` from now; 0 is the next turn, after all that is ready by then."""
        timer = Timer(self.now() + seconds, callback)
        self._sequence += 1
        heapq.heappush(self._heap, (timer.when, self._sequence, timer))
        return timer

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        self._running = True
        while self._running:
            self.turn()

    def turn(self) -> None:
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        patience = max(0.0, self._heap[0][0] - self.now()) if self._heap else None
        ready, now = self._selector.select(patience), self.now()
        watched = self._selector.get_map()
        for key, mask in ready:
            # A callback of this same batch may have closed the descriptor, and a new one may bear its number.
            for event, callback in zip((selectors.EVENT_READ, selectors.EVENT_WRITE), key.data, strict=True):
                if mask & event and callback is not None and watched.get(key.fd) is key:
                    self._call(callback)
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)[2]
            if timer.callback is not None:
                self._call(timer.callback)

    def _call(self, callback: Callback) -> None:
        try:
            callback()
        except Exception as error:
            self._on_error(error)
