"""Peers are called before it matters, each once, and not all at a time."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from trainflow.coordination.peer_ping import Greetings


def peers(called: list[str], *names: str) -> dict[str, Any]:
    def note(name: str) -> Callable[[], None]:
        return lambda: called.append(name)

    return {name: SimpleNamespace(ping=SimpleNamespace(remote=note(name))) for name in names}


def test_each_is_called_once_also_if_they_are_introduced_again():
    called: list[str] = []
    greetings = Greetings()
    greetings.greet()
    greetings.meet(peers(called, "a", "b"))
    assert called == [], "the head may be out of reach"
    greetings.greet()
    greetings.meet(peers(called, "a", "b", "c"))
    for _ in range(2):
        greetings.greet()
    assert called == ["a", "b", "c"]


def test_one_that_is_gone_is_not_called_and_one_that_is_back_is():
    called: list[str] = []
    greetings = Greetings()
    greetings.meet(peers(called, "a", "b"))
    greetings.meet(peers(called, "a"))
    greetings.greet()
    greetings.meet(peers(called, "b"))
    greetings.greet()
    greetings.meet(peers(called, "a", "b"))
    greetings.greet()
    assert called == ["a", "b", "a"]


def test_of_many_a_few_are_called_at_a_time():
    called: list[str] = []
    names = [str(number) for number in range(40)]
    greetings = Greetings()
    greetings.meet(peers(called, *names))
    counts: list[int] = []
    for _ in range(4):
        greetings.greet()
        counts.append(len(called))
    assert counts == [16, 32, 40, 40]
    assert called == names
