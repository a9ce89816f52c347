"""From a coordinator's answers to lines and a drawing."""

import io
import math
import re

import pytest
from rich.console import Console

from tests.unit.cli.fakes import make_event, make_status, make_step
from trainflow.cli.progress import Progress, describe_step, draw, list_lines, measure_rate
from trainflow.config.job import JobConfig


def drawn(progress: Progress, notice: str = "") -> str:
    output = io.StringIO()
    Console(file=output, width=80, color_system=None).print(draw(progress, notice))
    return output.getvalue()


def without_times(lines: list[str]) -> list[str]:
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines)
    return [line[9:] for line in lines]


def test_a_step_is_one_line():
    text = describe_step(make_step(7, scalars={"accuracy": 0.51234}), make_status())
    assert text == (
        "step=7/10 loss=2.5000 grad_norm=1.250 lr=1.00e-03 world=3 spares=2 accuracy=0.5123"
    )


def test_a_skipped_step_says_so():
    step = make_step(7, applied=False, loss=math.nan, grad_norm=math.inf)
    assert "loss=nan grad_norm=inf" in describe_step(step, make_status())
    assert "skipped: the gradient was not finite" in describe_step(step, make_status())
    odd = {"expected": 1.0, "score": 40.0, "num_in_a_row": 1}
    step = make_step(7, applied=False, grad_norm=50.0, odd_norm=odd)
    assert "skipped: the gradient was too large" in describe_step(step, make_status())


def test_lines_come_in_the_order_of_their_times():
    status = make_status(
        steps=[make_step(1), make_step(2)],
        events=[make_event(1, at_s=1001.5, kind="failure", text="lost slot1-1.1 (rank 1): gone")],
    )
    lines = without_times(list(list_lines(status, 1)))
    assert [line.split()[0] for line in lines] == ["step=1/10", "failure:", "step=2/10"]
    assert lines[1] == "failure: lost slot1-1.1 (rank 1): gone"


@pytest.mark.parametrize(("every", "logged"), [(1, 10), (4, 3), (100, 1)])
def test_every_nth_step_is_logged_and_the_last_one(every: int, logged: int):
    status = make_status(steps=[make_step(number) for number in range(1, 11)])
    lines = list(list_lines(status, every))
    assert len(lines) == logged
    assert "step=10/10" in lines[-1]


def test_an_ending_is_left_to_whoever_prints_its_reason():
    failed = make_event(2, kind="failed", text="rank 0 raised:\nTraceback")
    status = make_status(events=[make_event(1), failed])
    progress = Progress("tokens", 1)
    assert without_times(progress.take(status)) == ["launched: 3 workers"]
    assert "raised" not in drawn(progress)


def test_of_an_event_only_its_first_line_is_shown():
    status = make_status(events=[make_event(1, text="lost slot1\n  a long story")])
    assert without_times(list(list_lines(status, 1))) == ["launched: lost slot1"]


def test_progress_knows_what_to_ask_for_next():
    progress = Progress("tokens", 1)
    assert (progress.last_event, progress.last_step) == (None, 0)
    progress.take(make_status(steps=[make_step(n) for n in range(1, 60)], events=[make_event(4)]))
    progress.take(make_status())
    assert (progress.last_event, progress.last_step) == (4, 59)


def test_the_rate_is_the_weight_of_all_steps_but_the_first_over_their_time():
    assert measure_rate([]) is None
    assert measure_rate([make_step(1)]) is None
    steps = [make_step(1, weight=1e9), make_step(2, weight=300.0), make_step(3, weight=100.0)]
    assert measure_rate(steps) == pytest.approx(200.0)
    assert measure_rate([make_step(1), make_step(2, committed_at_s=1001.0)]) is None


def test_the_rate_is_that_of_the_newest_steps():
    progress = Progress("tokens", 1)
    slow = [make_step(n, committed_at_s=100.0 * n) for n in range(1, 100)]
    fast = [make_step(n, committed_at_s=9900.0 + n) for n in range(100, 130)]
    progress.take(make_status(steps=slow + fast))
    assert measure_rate(progress.steps) == pytest.approx(512.0)


def test_a_drawing_shows_the_figures_and_the_newest_events():
    progress = Progress("tokens", 1)
    events = [make_event(n, text=f"event number {n}") for n in range(1, 20)]
    steps = [make_step(1), make_step(2)]
    progress.take(make_status(step=2, failures=4, steps=steps, events=events))
    text = drawn(progress)
    for shown in ("tiny-abcdef", "running", "2/10", "2.5000", "512", "tokens/s", "number 19"):
        assert shown in text
    assert "number 2\n" not in text
    heading, row = text.splitlines()[2:4]
    assert heading.strip("│ ").endswith("failures survived")
    assert row.strip("│ ").endswith(" 4")


def test_a_drawing_needs_no_step_yet_and_cuts_what_is_too_long():
    progress = Progress("samples", 1)
    progress.take(make_status(state="pending", events=[make_event(1, text="x" * 500)]))
    text = drawn(progress)
    assert "0/10" in text
    assert text.count("xxx") > 10
    assert [line for line in text.splitlines() if "xxx" in line] == [text.splitlines()[-2]]


def test_a_notice_stands_where_the_state_does():
    progress = Progress("tokens", 1)
    progress.take(make_status())
    assert "the coordinator is away" in drawn(progress, "the coordinator is away").splitlines()[0]


@pytest.mark.parametrize(
    ("data", "unit"), [({"url": "corpus"}, "tokens"), ({"dataset": "m:f"}, "samples")]
)
def test_the_unit_follows_from_the_data(data: dict[str, str], unit: str):
    training = {"max_steps": 1, "global_batch_size": 1, "microbatch_size": 1}
    workers = {"minimum": 1, "target": 1}
    job = {"name": "x", "entrypoint": "m:f", "training": training, "workers": workers}
    assert Progress.of(JobConfig.model_validate(job | {"data": data})).unit == unit
