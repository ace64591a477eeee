"""The strongest wish wins, whoever wishes first."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.daemon.wishes import Wish, Wishes


@given(st.lists(st.sampled_from(Wish)))
def test_a_weaker_wish_is_forgotten(made: list[Wish]) -> None:
    wishes = Wishes()
    for wish in made:
        wishes.make(wish)
    assert wishes.strongest == max(made, default=Wish.NONE)


async def test_who_waits_hears_the_first_wish_and_then_only_stronger_ones() -> None:
    wishes = Wishes()
    first = asyncio.create_task(wishes.stronger_than(Wish.NONE))
    second = asyncio.create_task(wishes.stronger_than(Wish.STOP))
    await asyncio.sleep(0)
    wishes.make(Wish.STOP)
    assert await first is Wish.STOP
    await asyncio.sleep(0)
    assert not second.done()
    wishes.make(Wish.REPLACE)
    wishes.make(Wish.KEEPER_LOST)
    assert await second is Wish.KEEPER_LOST
    assert await wishes.stronger_than(Wish.REPLACE) is Wish.KEEPER_LOST


async def test_who_gives_up_waiting_is_forgotten() -> None:
    wishes = Wishes()
    waiting = asyncio.create_task(wishes.stronger_than(Wish.NONE))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not wishes._waiters
    wishes.make(Wish.STOP)
