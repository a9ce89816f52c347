"""What is held is free once nobody holds it any more."""

from trainflow.coordination.chaos.holds import Holds


def test_who_lets_go_tells_how_the_others_have_it_be():
    holds = Holds()
    first, second = holds.begin("clock", 60), holds.begin("clock", -5)
    third, other = holds.begin("clock", 60), holds.begin("disk")
    assert holds.end(second) == [60, 60]
    assert holds.end(third) == [60]
    assert holds.end(other) == []
    assert holds.end(first) == []


def test_nobody_lets_go_twice_for_another():
    holds = Holds()
    first, _second = holds.begin("disk", 1), holds.begin("disk", 1)
    assert holds.end(first) == holds.end(first) == [1]
    holds.clear()
    assert holds.end(first) == []
