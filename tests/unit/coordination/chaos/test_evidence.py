"""What a run has left on the disk becomes evidence."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.coordination.chaos.test_fitting import make_job
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.campaign_marks import ServiceTarget, join_campaign
from trainflow.computation.chaos_orders import CAMPAIGN, Claim, claim
from trainflow.coordination.chaos.evidence import facts_of, gather
from trainflow.coordination.chaos.findings import EndState
from trainflow.coordination.chaos.flips import Flip
from trainflow.coordination.chaos.used_samples import Committed, Used


def write_lines(path: Path, *lines: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_it_is_all_there(tmp_path: Path):
    folder, record = tmp_path / "campaign", tmp_path / "record"
    began = {"fact": "began", "num_samples": 50}
    used = {"fact": "used", "step": 1, "epoch": [1, 1], "indices": [4, 2]}
    committed = {"fact": "committed", "step": 1, "epoch": [1, 1]}
    ended = {"fact": "ended", "rank": 1, "shard": [0, 1], "digest": "cafe", "reason": ""}
    path = folder / "witness-slot1-1.1.jsonl"
    write_lines(path, began, used, committed, ended)
    with path.open("a") as file:
        file.write('{"fact": "comm')  # killed as it wrote
    write_lines(folder / "witness-slot2-1.2.jsonl", began, ended | {"rank": None})
    unhashed = {"rank": 2, "digest": None, "reason": "it is odd"}
    write_lines(folder / "witness-slot3-1.3.jsonl", began, ended | unhashed)
    write_lines(record / "metrics.jsonl", {"step": 1})
    write_lines(record / "events.jsonl", {"kind": "launched"})
    assert claim(folder, Claim(3, "slot1-1.1", 7, 1, 1, (1, 1), 9.0, 3))
    ending = {"reason": "every step is done", "exit_code": 0}
    status = {"job_id": "tiny-abcdef", "directory": str(record), "state": "succeeded"}
    found = gather(status | {"ending": ending}, folder, [3, 4], ["process 7"])
    assert (found.state, found.num_samples, found.left) == ("succeeded", 50, ("process 7",))
    assert found.used == [Used("slot1-1.1", 1, (1, 1), (4, 2))]
    assert found.commits == [Committed("slot1-1.1", 1, (1, 1))]
    assert found.ends == (
        EndState("slot1-1.1", 1, (0, 1), "cafe"),
        EndState("slot3-1.3", 2, (0, 1), None, "it is odd"),
    )
    assert found.flips == (Flip(1, 1, (1, 1), 9.0, 3),)
    assert (list(found.steps), list(found.events)) == ([{"step": 1}], [{"kind": "launched"}])


def test_a_loss_is_told_within_a_lease_a_hang_and_a_start_of_a_coordinator():
    auto = facts_of(make_job(failures={"lease_s": 5.0})).notice
    assert (auto.any_s, auto.death_s) == (5 + 120 + 30, 5 + 30)
    given = facts_of(make_job(failures={"lease_s": 5.0, "hang_timeout_s": 7.0})).notice
    assert (given.any_s, given.death_s) == (5 + 7 + 30, 5 + 30)


def test_a_cut_costs_nobody_anything_that_is_far_shorter_than_what_anybody_is_judged_by():
    notice = facts_of(make_job(failures={"lease_s": 8.0, "hang_timeout_s": 20.0})).notice
    assert [notice.is_felt(cut_s) for cut_s in (3.9, 4.0)] == [False, True]
    tight = facts_of(make_job(failures={"lease_s": 8.0, "hang_timeout_s": 2.0})).notice
    assert [tight.is_felt(cut_s) for cut_s in (0.9, 1.0)] == [False, True]
    auto = facts_of(make_job(failures={"lease_s": 30.0})).notice
    assert [auto.is_felt(cut_s) for cut_s in (4.9, 5.0)] == [False, True]


def test_who_begins_in_a_place_where_one_has_stands_for_its_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    join_campaign("job", "coordinator")
    monkeypatch.setenv(CAMPAIGN, str(tmp_path))
    begins: list[tuple[ServiceTarget, str | None, str | None]] = [
        ("coordinator", None, None),
        ("keeper", "n1", "h1"),
        ("keeper", "n2", "h2"),
        ("coordinator", None, None),
        ("coordinator", None, None),
        ("keeper", "n2", "h2"),
    ]
    for target, node_id, host in begins:
        join_campaign("job", target, node_id, host)
    record = tmp_path / "record"
    write_lines(record / "metrics.jsonl")
    write_lines(record / "events.jsonl")
    status = {"job_id": "job", "directory": str(record), "state": "succeeded"}
    found = gather(status | {"ending": {"reason": ""}}, tmp_path / "job", [], [])
    told = [(each.target, each.node_id, each.host) for each in found.deaths]
    assert told == [("coordinator", None, None)] * 2 + [("keeper", "n2", "h2")]
    assert all(abs(each.seen_at_s - SYSTEM_CLOCK.unix_s()) < 60.0 for each in found.deaths)
