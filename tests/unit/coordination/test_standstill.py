"""Where a thread stands, by its stack."""

from dataclasses import replace

from trainflow.coordination.standstill import (
    Frame,
    OwnCode,
    describe_places,
    find_place,
    parse_stacks,
)

TEXT = """Thread 0x00007f0000000002 (most recent call first):
  File "/env/lib/python3.11/threading.py", line 320 in wait
  File "/srv/my jobs/lm.py", line 7 in <lambda>
  File "/env/lib/python3.11/site-packages/ray/x.py", line 9 in run

Current thread 0x00007f0000000001 [python] (most recent call first):
  File "/env/bin/ray", line 1 in <module>
"""
OWN = OwnCode("/src/trainflow", "jobs")
SLEEP = Frame("/src/trainflow/clock.py", 38, "sleep")
USERS = Frame("/home/me/trainflow/jobs/lm.py", 80, "train")
TORCH = Frame("/env/lib/python3.11/site-packages/torch/nn/module.py", 5, "forward")


def test_frames_are_told_by_thread_innermost_first():
    stacks = parse_stacks(TEXT)
    assert list(stacks) == [0x7F0000000002, 0x7F0000000001]
    assert stacks[0x7F0000000002][1] == Frame("/srv/my jobs/lm.py", 7, "<lambda>")
    assert [frame.function for frame in stacks[0x7F0000000002]] == ["wait", "<lambda>", "run"]
    assert stacks[0x7F0000000001] == (Frame("/env/bin/ray", 1, "<module>"),)


def test_a_stack_that_was_cut_is_told_as_far_as_it_goes():
    assert len(parse_stacks(TEXT[:200])[0x7F0000000002]) == 2
    assert parse_stacks("") == {}


def test_a_place_is_the_innermost_of_the_jobs_frames():
    assert find_place([TORCH, USERS, SLEEP, USERS], OWN) == "train (trainflow/jobs/lm.py:80)"


def test_what_it_called_of_this_package_stands_beside_it():
    place = find_place([TORCH, SLEEP, TORCH, USERS], OWN)
    assert place == "train (trainflow/jobs/lm.py:80) > sleep (src/trainflow/clock.py)"
    assert find_place([SLEEP, TORCH], OWN) == "sleep (src/trainflow/clock.py)"


def test_two_that_turn_in_one_loop_of_this_package_stand_together():
    later = replace(SLEEP, line=SLEEP.line + 1)
    assert find_place([SLEEP, USERS], OWN) == find_place([later, USERS], OWN)
    assert find_place([SLEEP], OWN) == find_place([TORCH, later], OWN)


def test_libraries_are_no_place():
    frozen = Frame("<frozen importlib._bootstrap>", 1, "_load")
    assert (
        find_place([frozen, TORCH, Frame("/usr/lib/python3/dist-packages/a.py", 1, "f")], OWN) == ""
    )


def test_a_job_that_is_installed_as_libraries_are_is_the_jobs():
    packages = "/env/lib/python3.11/site-packages"
    assert find_place([TORCH, Frame(f"{packages}/jobs/lm.py", 3, "train")], OWN)
    assert find_place([TORCH, Frame(f"{packages}/jobs.py", 3, "train")], OWN)
    assert not find_place([TORCH, Frame(f"{packages}/jobs2/lm.py", 3, "train")], OWN)


def test_those_that_stand_together_are_told_together():
    places = {"c": "its process is stopped", "a": "wait", "b": "wait", "spare": "wait"}
    ranks = {"a": 0, "b": 1, "c": 2}
    text = describe_places(places, ranks)
    assert text == "rank 2: its process is stopped; ranks 0, 1, spare: wait"


def test_very_many_ranks_and_places_stay_short():
    waiting = {str(rank): "wait" for rank in range(1000)}
    ranks = {each: int(each) for each in waiting}
    assert describe_places(waiting, ranks) == "1000 ranks from 0 to 999: wait"
    text = describe_places({each: f"place {each}" for each in waiting}, ranks)
    assert text.endswith("rank 3: place 3; and 996 more places")
