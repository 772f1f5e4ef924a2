"""What the watch of the event loop's turns sees."""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
from collections.abc import Iterator
from pathlib import Path

from proxy.turns import (
    BOUND,
    BUCKETS,
    MOST_READY,
    Turns,
    WatchedSelector,
)
from tests.support.watched import watched


def test_each_turn_is_counted_once_in_its_class() -> None:
    turns = Turns()
    for cpu in (0.0005, 0.001, 0.0011, BOUND, BOUND + 0.001, 9.0):
        turns.took(cpu, 10.0)
    at = dict(zip([*BUCKETS, None], turns.counts, strict=True))
    assert {bound: count for bound, count in at.items() if count} == {
        0.001: 2,
        0.002: 1,
        BOUND: 1,
        0.05: 1,
        None: 1,
    }
    assert (turns.over, turns.longest, turns.longest_wall) == (2, 9.0, 10.0)


async def test_a_server_tells_of_its_turns(tmp_path: Path) -> None:
    async with watched(tmp_path) as dragoman:
        before = await dragoman.turns()
        for _ in range(3):
            await dragoman.get("/healthz")
        after = await dragoman.turns()
    assert after.all > before.all
    assert after.longest > 0


@contextlib.contextmanager
def readable(
    count: int,
) -> Iterator[tuple[WatchedSelector, list[tuple[socket.socket, socket.socket]]]]:
    """A selector of pairs of sockets, by their numbers, each of which has something to read."""
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(contextlib.closing(WatchedSelector(Turns())))
        pairs = [socket.socketpair() for _ in range(count)]
        for number, pair in enumerate(pairs):
            for one in pair:
                stack.callback(one.close)
            pair[1].send(b"x")
            selector.register(pair[0].fileno(), selectors.EVENT_READ, number)
        yield selector, pairs


def test_a_selector_tells_of_few_files_in_one_turn_and_of_all_in_the_next_ones() -> None:
    with readable(2 * MOST_READY + 5) as (selector, pairs):
        turns: list[list[int]] = []
        for _ in range(3):
            ready = selector.select(0)
            turns.append([key.data for key, _ in ready])
            for key, _ in ready:
                pairs[key.data][0].recv(1)
        assert list(map(len, turns)) == [MOST_READY, MOST_READY, 5]
        assert sorted(itertools.chain(*turns)) == list(range(len(pairs)))
        assert selector.select(0) == []


def test_a_selector_tells_nothing_of_a_file_that_is_another_one_now() -> None:
    with readable(MOST_READY + 3) as (selector, pairs):
        told = {key.data for key, _ in selector.select(0)}
        gone, again, same = sorted(set(range(len(pairs))) - told)
        for number in told:
            selector.unregister(pairs[number][0].fileno())
        selector.unregister(pairs[gone][0].fileno())
        # It is waited for anew, as another file of that number would be, and says nothing.
        number = pairs[again][0].fileno()
        selector.unregister(number)
        pairs[again][0].recv(1)
        selector.register(number, selectors.EVENT_READ, again)
        assert [key.data for key, _ in selector.select(0)] == [same]
        assert [key.data for key, _ in selector.select(0)] == [same]
