import pytest

from trainflow.coordination.bisection import DifferingTensors, History, find_parting

WORLD = {1: 2, 2: 2, 3: 2, 4: 2}
SAME = {1: "a", 2: "b", 3: "c", 4: "d"}


def history(**changes) -> History:
    return History(**{"digests": SAME, "worlds": WORLD} | changes)


def test_runs_that_are_the_same_part_nowhere():
    parting = find_parting(history(), history(tensors={2: {"w": "1"}}, stored={4: {"w": "x"}}))
    assert parting.shared == (1, 2, 3, 4)
    assert (parting.step, parting.digest_step, parting.tensors) == (None, None, None)


@pytest.mark.parametrize("step", [1, 3, 4])
def test_the_first_step_that_differs_is_found_whatever_comes_after(step: int):
    other = {n: digest if n < step else f"other {n}" for n, digest in SAME.items()}
    parting = find_parting(history(), history(digests=other))
    assert (parting.step, parting.digest_step) == (step, step)
    assert find_parting(history(digests=other), history()) == parting


def test_only_steps_that_both_have_count():
    parting = find_parting(history(), history(digests={3: "c", 4: "d", 5: "e"}))
    assert parting.shared == (3, 4)
    assert parting.step is None
    assert find_parting(history(), history(digests={9: "a"})).shared == ()


def test_the_first_tensor_is_the_first_in_order_at_the_first_step_that_tells():
    one = history(tensors={2: {"g": "1", "w": "2", "b": "3"}, 4: {"g": "4", "w": "5", "b": "6"}})
    other = history(
        digests=SAME | {3: "x", 4: "y"},
        tensors={2: {"g": "1", "w": "2", "b": "3"}, 4: {"b": "x", "w": "y", "g": "4", "new": "z"}},
    )
    parting = find_parting(one, other)
    assert parting.step == 3
    assert parting.tensors == DifferingTensors(4, "digests", ("w", "b"), 3)


def test_a_tensor_that_differs_before_any_gradient_does_counts():
    """A bit that flips in an optimizer's step is in no gradient of that step."""
    tensors = {2: {"w": "1"}}, {2: {"w": "x"}}
    one, other = (history(tensors=each) for each in tensors)
    parting = find_parting(one, history(digests=SAME | {3: "x"}, tensors=other.tensors))
    assert (parting.step, parting.digest_step) == (2, 3)
    assert find_parting(one, other).step == 2


def test_checkpoints_tell_where_the_record_doesn_t_or_tells_later():
    stored = {2: {"w": "1", "m": "2"}}, {2: {"w": "1", "m": "x"}}
    tensors = {4: {"w": "1"}}, {4: {"w": "x"}}
    one, other = (history(tensors=t, stored=s) for t, s in zip(tensors, stored, strict=True))
    assert find_parting(one, other).tensors == DifferingTensors(2, "checkpoint", ("m",), 2)
    at_once = find_parting(
        history(tensors=stored[0], stored=stored[0]), history(tensors=stored[1], stored=stored[1])
    )
    assert at_once.tensors is not None
    assert at_once.tensors.source == "digests", "they have gradients, which part first"


def test_the_step_is_told_from_which_on_the_worlds_differ():
    assert find_parting(history(), history()).worlds_step is None
    assert find_parting(history(), history(worlds=WORLD | {3: 1, 4: 1})).worlds_step == 3


def test_what_was_the_same_before_is_told_by_whatever_was_compared():
    stored = {step: {"w": str(step)} for step in (10, 20, 30)}
    one = History({}, {}, stored=stored)
    parting = find_parting(one, one)
    assert (parting.step, parting.same_step, parting.tensor_steps) == (None, 30, (10, 20, 30))
    other = History({}, {}, stored=stored | {20: {"w": "x"}, 30: {"w": "y"}})
    parting = find_parting(one, other)
    assert (parting.step, parting.same_step) == (20, 10)
    first = find_parting(one, History({}, {}, stored=stored | {10: {"w": "x"}}))
    assert (first.step, first.same_step) == (10, None)


def test_equal_gradients_of_a_step_say_that_it_was_come_to_alike():
    tensors = {4: {"w": "1"}}, {4: {"w": "x"}}
    one, other = (history(tensors=each, digests={4: "d"}) for each in tensors)
    assert (find_parting(one, other).step, find_parting(one, other).same_step) == (4, 3)
    unlike = history(tensors=tensors[1], digests={4: "e"})
    assert find_parting(one, unlike).same_step is None


def test_a_step_that_nobody_lived_to_report_leaves_two_in_which_they_may_part():
    lacking = history(digests={1: "a", 3: "x", 4: "y"})
    parting = find_parting(history(), lacking)
    assert (parting.step, parting.same_step) == (3, 1)


def test_tensors_of_different_sources_or_names_are_not_compared():
    one = history(digests={}, tensors={2: {"w": "1"}}, stored={4: {"w": "1"}})
    other = history(digests={}, tensors={4: {"w": "1"}}, stored={2: {"w": "1"}, 4: {"v": "1"}})
    assert find_parting(one, other).tensor_steps == ()
