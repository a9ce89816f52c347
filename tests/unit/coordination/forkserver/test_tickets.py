"""Which tickets were used, as one server after another is told."""

import os

from trainflow.coordination.forkserver.tickets import UsedTickets, make_file


def test_what_one_server_has_used_is_used_for_the_next():
    number = make_file()
    first = UsedTickets(os.dup(number))
    assert "one" not in first
    first.add("one")
    assert "one" in first
    first.close()
    second = UsedTickets(os.dup(number))
    second.add("two")
    second.close()
    third = UsedTickets(number)
    assert [each in third for each in ("one", "two", "tw", "")] == [True, True, False, False]
    third.close()
