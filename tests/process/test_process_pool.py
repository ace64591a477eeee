"""The pool, case by case: numbers and corners that the state machine does not aim at."""

from __future__ import annotations

import math

import pytest

from supervisord_py.process import pool as pools
from supervisord_py.process.model import Reason
from supervisord_py.process.pool import (
    Action,
    Bounds,
    Fail,
    Grant,
    Pin,
    Refusal,
    Refuse,
    Rules,
    Start,
    Stop,
)

RULES = Rules("v1", concurrency=1, keep_seconds=100.0)
NOW = 1000.0


class Pool:
    """A pool with a clock and a ticket counter."""

    def __init__(self, **bounds: object) -> None:
        self.set = pools.Pool(Bounds(**bounds))  # type: ignore[arg-type]
        self.now = NOW
        self.ticket = 0

    def send(self, what: str, *about: object) -> tuple[Action, ...]:
        return tuple(getattr(self.set, what)(*about, now=self.now))

    def ask(
        self,
        tool: str = "a",
        rules: Rules = RULES,
        patience: float = 50.0,
        keep: float | None = None,
    ) -> tuple[Action, ...]:
        self.ticket += 1
        return self.send("ask", self.ticket, tool, rules, self.now + patience, keep)

    def warm(self, tool: str = "a", keep: float | None = None, seconds: float = 0.0) -> int:
        """Bring a tool up by a request that ends at once; return its serial."""
        serial = next(it.serial for it in self.ask(tool, keep=keep) if isinstance(it, Start))
        self.now += seconds
        self.send("ready", tool, serial)
        self.end(tool)
        return serial

    def end(self, tool: str = "a") -> tuple[Action, ...]:
        return self.send("end", tool, self.ticket)

    def fail(self) -> None:
        """Have the first start of a tool fail."""
        self.ask()
        self.send("start_failed", "a", 1)
        self.send("gone", "a", 1)


@pytest.mark.parametrize(
    ("keep", "pin", "expires"),
    [
        (5.0, Pin.NONE, 5.0),
        (-1.0, Pin.NONE, math.inf),
        (5.0, Pin.LRU, 100.0),
        (500.0, Pin.LRU, 500.0),
        (0.0, Pin.FOREVER, math.inf),
    ],
)
def test_keep_alive_replaces_the_age_but_never_lowers_a_pin(
    keep: float | None, pin: Pin, expires: float
) -> None:
    pool = Pool()
    pool.send("pin", "a", pin)
    pool.warm(keep=keep)
    slot = pool.set.slot("a")
    assert slot is not None
    assert pool.set.expires_at(slot) == NOW + expires


def test_the_line_is_bounded_beyond_what_an_instance_takes() -> None:
    pool = Pool(queue_max=1)
    pool.warm()
    pool.ask()
    assert pool.ask() == ()
    assert pool.ask() == (Refuse(4, "a", Refusal.QUEUE_FULL, 1.0),)


def test_who_waits_for_an_end_is_not_refused_because_all_places_are_pinned() -> None:
    pool = Pool(keep_max=2)
    for tool in ("a", "c"):
        pool.send("pin", tool, Pin.LRU)
    pool.warm("a")
    serial = pool.warm("b")
    pool.send("stop", "b", Reason.STOPPED)
    pool.warm("c")
    assert pool.ask("b") == ()
    assert pool.ask("d") == (Refuse(5, "d", Refusal.ALL_PINNED, 1.0),)
    assert pool.send("gone", "b", serial) == (Refuse(4, "b", Refusal.ALL_PINNED, 1.0),)


HOLDING = pools.BackoffPolicy(initial_seconds=4.0, max_seconds=8.0)


def test_after_a_failure_the_next_request_waits_in_line_until_the_backoff_is_over() -> None:
    pool = Pool(backoff=HOLDING)
    pool.fail()
    for serial, hold in ((2, 4.0), (3, 8.0), (4, 8.0)):
        assert pool.ask(patience=9.0) == ()
        assert pool.set.next_deadline() == pool.now + hold
        pool.now += hold - 1
        assert pool.send("tick") == ()
        pool.now += 1
        assert pool.send("tick") == (Start("a", serial),)
        assert Fail(serial, "a", serial) in pool.send("start_failed", "a", serial)
        pool.send("gone", "a", serial)


def test_another_declaration_is_tried_at_once() -> None:
    pool = Pool(backoff=HOLDING)
    pool.fail()
    assert pool.ask(patience=3.0) == (Refuse(2, "a", Refusal.FAILING, 4.0),), (
        "its own time is shorter"
    )
    assert pool.ask() == ()
    assert pool.send("declare", "a", Rules("v1", 2, 100.0)) == ()
    assert pool.send("declare", "a", Rules("v2", 1, 100.0)) == (Start("a", 2),)
    pool.send("start_failed", "a", 2)
    pool.send("gone", "a", 2)
    assert pool.ask(rules=Rules("v3", 1, 100.0)) == (Start("a", 3),)


def test_a_start_that_begins_again_keeps_its_waiters_and_costs_no_pause() -> None:
    pool = Pool(backoff=HOLDING)
    pool.ask()
    assert pool.send("start_again", "a", 1) == (Stop("a", 1, None),)
    assert pool.ask() == (), "it waits in the same line"
    assert pool.send("gone", "a", 1) == (Start("a", 2),)
    granted = pool.send("ready", "a", 2)
    assert [type(each) for each in granted] == [Grant], "it takes one at a time"
    assert pool.send("start_again", "a", 2) == (), "a ready one does not"


def test_a_start_that_begins_again_for_nobody_does_not() -> None:
    pool = Pool(backoff=HOLDING)
    pool.ask()
    pool.send("start_again", "a", 1)
    pool.send("end", "a", 1)
    assert pool.send("gone", "a", 1) == ()


def test_a_start_that_outlived_its_declaration_says_nothing_of_the_next_one() -> None:
    pool = Pool(backoff=HOLDING)
    pool.ask()
    pool.set.forget("a", pool.now)
    pool.send("start_failed", "a", 1)
    pool.send("gone", "a", 1)
    assert pool.ask() == (Start("a", 2),)


def test_a_new_declaration_replaces_the_idle_one_and_its_age() -> None:
    pool = Pool()
    pool.warm()
    assert pool.send("declare", "a", Rules("v1", 1, 7.0)) == ()
    assert pool.set.next_deadline() == NOW + 7
    pool.ask(keep=30.0)
    pool.end()
    pool.send("declare", "a", Rules("v1", 1, 100.0))
    assert pool.set.next_deadline() == NOW + 30
    pool.send("declare", "nobody", RULES)


def test_the_memory_budget_evicts_the_oldest_idle_ones_that_have_a_size() -> None:
    pool = Pool(memory_budget_bytes=100)
    one, two = pool.warm("a"), pool.warm("b")
    pool.ask("c")
    pool.end("c")
    assert pool.send("measured", {"a": 60, "b": 40}) == ()
    assert pool.send("measured", {"b": 50}) == (Stop("a", one, Reason.EVICTED_LRU),)
    pool.ask("b")
    assert pool.send("measured", {"b": 500}) == ()
    assert pool.end("b") == (Stop("b", two, Reason.EVICTED_LRU),)


def test_the_least_recently_used_goes_first() -> None:
    pool = Pool(keep_max=3)
    serials = {}
    for tool in ("a", "b", "c"):
        pool.now += 1
        serials[tool] = pool.warm(tool)
    pool.now += 1
    pool.ask("a")
    pool.end("a")
    for tool in ("b", "c", "a"):  # each as the oldest of those that are idle
        assert Stop(tool, serials[tool], Reason.EVICTED_LRU) in pool.ask(f"after {tool}")
        pool.send("gone", tool, serials[tool])


def test_with_by_cost_what_took_least_to_start_goes_first() -> None:
    pool = Pool(keep_max=3, by_cost=True)
    serials = {}
    for tool, seconds in (("dear", 5.0), ("cheap", 0.1), ("usual", 1.0)):
        serials[tool] = pool.warm(tool, seconds=seconds)
    for tool in ("cheap", "usual", "dear"):
        assert Stop(tool, serials[tool], Reason.EVICTED_LRU) in pool.ask(f"after {tool}")
        pool.send("gone", tool, serials[tool])


def test_adopted_instances_count_and_age() -> None:
    pool = Pool()
    serial = pool.set.reserve_serial()
    assert (
        pool.set.adopt("a", serial, RULES, digest="v1", last_used=NOW - 90, ready=True, now=NOW)
        == []
    )
    assert pool.set.next_deadline() == NOW + 10
    assert pool.ask() == (Grant(1, "a", serial, cold=False),)
    other = pool.set.reserve_serial()
    stale = pool.set.adopt("b", other, RULES, digest="v0", last_used=NOW, ready=True, now=NOW)
    assert stale == [Stop("b", other, Reason.REPLACED)]
