"""Modules of the page that compute, with plain values, in the engine that runs them."""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.browser.conftest import OpenPage, Serve

pytestmark = pytest.mark.browser

Run = Callable[[str, str], Any]


@pytest.fixture
def run(serve: Serve, open_page: OpenPage) -> Iterator[Run]:
    """Evaluate an expression over what a module exports, as `m`."""
    with serve() as served:
        page = open_page(served.url)

        def run(module: str, expression: str) -> Any:
            return page.evaluate(
                f"import('{served.url}/page/{module}').then((m) => ({expression}))"
            )

        yield run


def point(step: int, value: float | None = 1.0, num_steps: int = 1) -> dict[str, Any]:
    count = 0 if value is None else num_steps
    return {
        "first_step": step - num_steps + 1,
        "last_step": step,
        "num_steps": num_steps,
        "committed_at_s": 1000.0 + step,
        "values": {
            "loss": {
                "mean": value,
                "minimum": value,
                "maximum": value,
                "num_values": count,
                "num_non_finite": num_steps - count,
            }
        },
    }


def test_events_are_read_however_the_stream_is_cut(run: Run):
    stream = 'retry: 1000\n\nid: 1\ndata: {"a": 1}\n\n: alive\n\nid: 2\r\ndata: x\r\ndata:y\r\n\r\n'
    stream += "event: end\ndata: {}\n\nid: 3\ndata: cut off"
    expected = [
        {"name": "message", "id": "1", "data": '{"a": 1}'},
        {"name": "message", "id": "2", "data": "x\ny"},
        {"name": "end", "id": "2", "data": "{}"},
    ]
    for length in (1, 2, 3, 7, 1000):
        pieces = json.dumps([stream[at : at + length] for at in range(0, len(stream), length)])
        found = run(
            "event_stream.js", f"(p => {pieces}.flatMap((x) => p.push(x)))(new m.EventParser())"
        )
        assert found == expected, length


def test_nodes_are_told_by_their_slowest_rank_the_slowest_first(run: Run):
    workers = [
        {"rank": 0, "host": "a", "compute_s": 0.2},
        {"rank": 1, "host": "b", "compute_s": 0.3},
        {"rank": 2, "host": "a", "compute_s": 0.9},
        {"rank": 3, "host": "c", "compute_s": None},
        {"rank": None, "host": "b", "compute_s": None},
        {"rank": None, "host": "d"},
    ]
    assert run("job_state.js", f"m.findSlowest({json.dumps(workers)})") == [
        {"host": "a", "numRanks": 2, "rank": 2, "computeS": 0.9, "ratio": 3},
        {"host": "b", "numRanks": 1, "rank": 1, "computeS": 0.3, "ratio": 1},
    ]
    assert run("job_state.js", "m.findSlowest([])") == []
    idle = json.dumps([{"rank": 0, "host": "a", "compute_s": 0}])
    assert run("job_state.js", f"m.findSlowest({idle})")[0]["ratio"] is None


def test_neighbouring_points_become_one_that_stands_for_both(run: Run):
    pair = json.dumps([point(1, 1.0), point(2, 4.0, num_steps=1), point(3, None)])
    first, last = run("series.js", f"m.halve({pair})")
    assert (first["first_step"], first["last_step"], first["num_steps"]) == (1, 2, 2)
    assert first["values"]["loss"] == {
        "mean": 2.5,
        "minimum": 1.0,
        "maximum": 4.0,
        "num_values": 2,
        "num_non_finite": 0,
    }
    merged = run("series.js", f"m.mergePoints({json.dumps(first)}, {json.dumps(last)})")
    assert merged["values"]["loss"]["mean"] == 2.5
    assert merged["values"]["loss"]["num_non_finite"] == 1


def test_a_series_stays_small_and_whole(run: Run):
    points = json.dumps([point(step) for step in range(1, 10_001)])
    found = run(
        "series.js",
        f"(s => {{ for (const p of {points}) s.add([p]); return s.points; }})(new m.Series())",
    )
    assert len(found) <= 2000
    assert sum(each["num_steps"] for each in found) == 10_000
    edges = [(each["first_step"], each["last_step"]) for each in found]
    assert edges[0][0] == 1
    assert all(after[0] == before[1] + 1 for before, after in itertools.pairwise(edges))


def test_a_point_that_stands_for_known_steps_too_replaces_them(run: Run):
    known, coarse = [point(step) for step in range(1, 6)], [point(8, num_steps=5)]
    found = run(
        "series.js",
        f"(s => (s.add({json.dumps(known)}), s.add({json.dumps(coarse)}), s.points))"
        "(new m.Series())",
    )
    assert [each["last_step"] for each in found] == [1, 2, 3, 8]


@pytest.mark.parametrize(("step", "left"), [(3, [1, 2, 3]), (7, []), (8, [1, 2, 3, 8]), (0, [])])
def test_a_run_that_goes_back_loses_its_points(step: int, left: list[int], run: Run):
    points = json.dumps([*[point(each) for each in (1, 2, 3)], point(8, num_steps=5)])
    found = run(
        "series.js",
        f"(s => (s.add({points}), s.goBack({step}), s.points.map((p) => p.last_step)))"
        "(new m.Series())",
    )
    assert found == left


def test_the_lag_is_counted_from_the_newest_checkpoint_at_the_time(run: Run):
    points = json.dumps([point(step) for step in (1, 2, 3, 4)])
    made = json.dumps([{"step": 2, "made_at_s": 1002.5}, {"step": 1, "made_at_s": 1001.5}])
    found = run("series.js", f"m.lagBehind({points}, {made}).map((p) => p.y)")
    assert found == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("extent", "ticks"),
    [
        ([0, 10], [0, 2, 4, 6, 8, 10]),
        ([0, 0.3], [0, 0.1, 0.2, 0.3]),
        ([-1.2, 1.1], [-1, -0.5, 0, 0.5, 1]),
        ([5, 5], [5]),
    ],
)
def test_axes_have_round_numbers(extent: list[float], ticks: list[float], run: Run):
    assert run("scale.js", f"m.ticksOf({extent})") == pytest.approx(ticks)


@pytest.mark.parametrize(("x", "nearest"), [(-5, 1), (1.4, 1), (1.6, 2), (6, 4), (7, 9), (99, 9)])
def test_the_nearest_point_is_found(x: float, nearest: int, run: Run):
    points = json.dumps([{"x": each} for each in (1, 2, 4, 9)])
    assert run("scale.js", f"m.nearestTo({points}, {x}).x") == nearest


@pytest.mark.parametrize(("x", "last"), [(0, None), (1, 1), (3.9, 2), (4, 4), (99, 9)])
def test_what_holds_at_a_place_is_found(x: float, last: int | None, run: Run):
    points = json.dumps([{"x": each} for each in (1, 2, 4, 9)])
    assert run("scale.js", f"m.lastUntil({points}, {x})?.x ?? null") == last


def test_waiting_grows_with_failures_and_does_what_the_service_says(run: Run):
    delays = run("pacing.js", "[1, 2, 3, 4, 5, 60].map((n) => m.decideDelay(n, 0, 0.5))")
    assert delays == [1, 2, 4, 8, 15, 15]
    assert run("pacing.js", "m.decideDelay(1, 30, 0.5)") == 30


def test_a_failure_after_all_was_well_is_the_first_again(run: Run):
    waits = run(
        "pacing.js",
        """import(new URL("page/api.js", document.baseURI)).then(async (api) => {
          const waits = [], end = new AbortController(), isWell = [false, false, true, true, true];
          await m.repeat(
            async (onWell) => {
              if (isWell.shift()) onWell();
              throw new api.ConnectionLost();
            },
            end.signal,
            (error, waitS) => {
              if (error === null) return;
              waits.push(waitS);
              if (isWell.length === 0) end.abort();
              setTimeout(() => window.dispatchEvent(new Event("online")));  // it waits no longer
            },
          );
          return waits;
        })""",
    )
    usual = [1, 2, 1, 1, 1]
    assert all(0.75 <= wait / each <= 1.25 for wait, each in zip(waits, usual, strict=True)), waits


def test_a_job_that_is_not_there_is_looked_for_about_a_minute(run: Run):
    delays = run("first_look.js", "[1, 2, 3, 4, 5, 6, 7, 8].map((n) => m.decideNextLook(n, 0.5))")
    assert delays == [1, 2, 4, 8, 15, 15, 15, None]


def last_lines(*calls: str, is_cut: bool = False) -> str:
    """Return an expression for what is kept of a log after some calls."""
    steps = "; ".join(f"l.{call}" for call in calls)
    return f"((l, b) => {{ {steps}; return l.text; }})({new_lines(is_cut=is_cut)}, {ENCODE})"


def new_lines(*, is_cut: bool) -> str:
    return f"new m.LastLines({json.dumps(is_cut)})"


ENCODE = "(text) => new TextEncoder().encode(text)"


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        (['push(b("a\\nb"))', 'push(b("c\\n"))'], "a\nbc\n"),
        (['push(b("\u00fc").slice(0, 1))', 'push(b("\u00fc").slice(1))'], "\u00fc"),
        (['push(b("1%\\r2%\\r\\nb"))'], "2%\nb"),
        (['push(b("\\u001b[31mred\\u001b[0m"))'], "red"),
        (
            ['push(b("a\\nb"))', "skip(7)", 'push(b("half\\nc"))'],
            "a\nb\n\u2026 7 bytes are gone \u2026\nc",
        ),
    ],
)
def test_a_log_is_put_together_however_it_comes(calls: list[str], text: str, run: Run):
    assert run("log_lines.js", last_lines(*calls)) == text


def test_a_line_without_its_beginning_is_left_out(run: Run):
    calls = ['push(b("half"))', 'push(b(" a line\\nwhole\\n"))']
    assert run("log_lines.js", last_lines(*calls, is_cut=True)) == "whole\n"


def test_of_a_log_only_the_last_lines_are_kept(run: Run):
    lines = run("log_lines.js", last_lines('push(b("x\\n".repeat(9000)))', 'push(b("end\\n"))'))
    assert lines == "x\n" * 499 + "end\n"
    endless = run("log_lines.js", last_lines(*['push(b("x".repeat(9000)))'] * 9))
    assert 1000 < len(endless) < 5000


def test_a_line_is_broken_where_a_value_is_missing(run: Run):
    points = json.dumps([{"x": x, "y": y} for x, y in enumerate([1, 2, None, 4, 5])])
    assert run("chart_marks.js", f"m.linePath({points}, (x) => x, (y) => y)") == "M0 1L1 2M3 4L4 5"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4213, "0.42 s"),
        (12.3, "12 s"),
        (75, "1 min 15 s"),
        (3700, "1 h 1 min"),
        (100_000, "1 d 3 h"),
    ],
)
def test_durations_are_told_as_people_do(seconds: float, text: str, run: Run):
    assert run("format.js", f"m.formatDuration({seconds})") == text


def test_a_status_is_stale_once_several_were_missed(run: Run):
    job = {"state": "running", "stale_s": 2.0}
    for since_s, is_stale in ((0, False), (2, False), (4, True)):
        assert run("job_state.js", f"m.isStale({json.dumps(job)}, {since_s})") == is_stale
    ended = job | {"state": "failed", "stale_s": 0.0}
    assert not run("job_state.js", f"m.isStale({json.dumps(ended)}, 1000)")
    cut_off = ended | {"stale_s": 40.0}
    assert run("job_state.js", f"m.isStale({json.dumps(cut_off)}, 0)")


def test_a_status_is_stale_for_the_reason_that_is_known(run: Run):
    job = {"state": "running", "stale_s": 40.0, "history_problem": None}
    for changes, said in (
        ({}, "nothing keeps the history"),
        ({"history_problem": "the disk is full"}, "for now: the disk is full."),
        ({"state": "stopped"}, "the job's end was never written"),
    ):
        told = run("job_state.js", f"m.describeStaleness({json.dumps(job | changes)})")
        assert said in told
