"""The keeper's event loop: ready descriptors, due timers, then one reconciliation.

Callbacks only handle what happened. What must be kept up (a control plane runs, a stop goes on, an
end is reported) is reconciled at the end of every turn, from what is, not from what a callback
remembered. So an exception in a callback, or in one reconciliation, delays a duty and never drops
it: the error is reported, and the duty is looked at again within RETRY_SECONDS.

Nothing else wakes the loop, so an idle keeper sleeps. Times are monotonic seconds.
"""

from __future__ import annotations

import heapq
import selectors
import time
from collections.abc import Callable

Callback = Callable[[], object]
Duty = Callable[[float], float | None]
"""Does what is due at the given time; returns when it wants to be called again (None: not by
time).
"""

RETRY_SECONDS = 0.5
"""After a duty has raised.

Short, since a lost control plane waits for it; long enough not to spin.
"""


class Timer:
    def __init__(self, when: float, callback: Callback | None) -> None:
        self.when = when
        self.callback = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """`on_error` gets every exception of a callback or a duty; it must not raise itself."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._selector = selectors.DefaultSelector()
        self._heap: list[tuple[float, int, Timer]] = []
        self._sequence = 0
        self._running = False
        self._is_woken = False
        self._on_error = on_error
        self._duties: list[Duty] = []
        self._duty_deadlines: list[float | None] = []

    @staticmethod
    def now() -> float:
        return time.monotonic()

    def reconcile_with(self, *duties: Duty) -> None:
        """Call these at the end of every turn, in this order.

        An error in one does not stop the others.
        """
        self._duties = list(duties)
        self._duty_deadlines = [0.0] * len(duties)

    def watch(self, fd: int, readable: Callback | None, writable: Callback | None = None) -> None:
        """Call back whenever `fd` is ready, until `unwatch(fd)`; replaces an earlier watch of
        it.
        """
        events = (selectors.EVENT_READ if readable else 0) | (
            selectors.EVENT_WRITE if writable else 0
        )
        change = (
            self._selector.modify if fd in self._selector.get_map() else self._selector.register
        )
        change(fd, events, (readable, writable))

    def unwatch(self, fd: int) -> None:
        """Forget `fd`, watched or not. To be called before the descriptor is closed."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def later(self, seconds: float, callback: Callback) -> Timer:
        """Call back once, `seconds` from now; 0 is the next turn, after all that is ready by then.

        For work that may be lost when it fails. What may not is a duty.
        """
        timer = Timer(self.now() + seconds, callback)
        self._sequence += 1
        heapq.heappush(self._heap, (timer.when, self._sequence, timer))
        return timer

    def wake(self) -> None:
        """Have another turn at once: a duty has got something to do, perhaps after its place in
        this turn.
        """
        self._is_woken = True

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        self._running = True
        while self._running:
            self.turn()

    def turn(self) -> None:
        try:
            ready = self._selector.select(self._patience())
        except OSError as error:  # ENOMEM: nothing was reported, so nothing is lost
            self._on_error(error)
            ready = []
        now = self.now()
        watched = self._selector.get_map()
        for key, mask in ready:
            # A callback of this same batch may have closed the descriptor, and a new one may bear
            # its number.
            for event, callback in zip(
                (selectors.EVENT_READ, selectors.EVENT_WRITE), key.data, strict=True
            ):
                if mask & event and callback is not None and watched.get(key.fd) is key:
                    self._call(callback)
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)[2]
            if timer.callback is not None:
                self._call(timer.callback)
        self._reconcile()

    def _patience(self) -> float | None:
        """Return how long the next select may sleep; None: until a descriptor is ready."""
        if self._is_woken:
            self._is_woken = False
            return 0.0
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        deadlines = [deadline for deadline in self._duty_deadlines if deadline is not None]
        if self._heap:
            deadlines.append(self._heap[0][0])
        if not deadlines:
            return None
        return max(0.0, min(deadlines) - self.now())

    def _reconcile(self) -> None:
        for number, duty in enumerate(self._duties):
            now = self.now()
            try:
                self._duty_deadlines[number] = duty(now)
            except Exception as error:
                self._duty_deadlines[number] = now + RETRY_SECONDS
                self._on_error(error)

    def _call(self, callback: Callback) -> None:
        try:
            callback()
        except Exception as error:
            self._on_error(error)
