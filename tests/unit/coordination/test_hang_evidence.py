"""What is kept of a hang, and that none of it holds the recovery up."""

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

import trainflow
from tests.full_disk import room_for
from trainflow.coordination.hang_evidence import Evidence, HangEvidence
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.stack_dumps import StackDump

PACKAGE = Path(trainflow.__file__).parent
STACKS = f"""Thread 0x00000000000000aa (most recent call first):
  File "{PACKAGE}/clock.py", line 38 in sleep
  File "/jobs/lm.py", line 9 in train

Thread 0x0000000000000001 (most recent call first):
  File "/jobs/other.py", line 1 in main
"""


class Nodes:
    """Keepers that tell what a test gives them."""

    def __init__(self, answer: Callable[[], dict[str, StackDump]]):
        self.asked: list[list[str]] = []
        self._answer = answer

    async def ask_stacks(
        self, worker_ids: Collection[str], timeout_s: float
    ) -> dict[str, StackDump]:
        self.asked.append(list(worker_ids))
        return self._answer()


def gather(
    record: RunRecord, answer: Callable[[], dict[str, StackDump]], hung: list[str]
) -> Evidence:
    nodes: Any = Nodes(answer)
    evidence = HangEvidence(nodes, record, "jobs.lm:train")
    return asyncio.run(evidence.gather(["a", "b", "c"], hung))


def test_the_culprit_comes_first_and_each_says_where_it_stands(record: RunRecord):
    dumps = {
        "a": StackDump(1, STACKS, 0xAA),
        "b": StackDump(2, trouble="its process is stopped"),
        "spare": StackDump(4, STACKS, 0),
    }
    shown = gather(record, lambda: dumps, ["b", "spare"])
    assert shown.text == (
        "rank 1: its process is stopped; spare: its training thread is not in its stacks; "
        "rank 0: train (/jobs/lm.py:9) > sleep (trainflow/clock.py)".replace(
            "trainflow/clock.py", f"{'/'.join(PACKAGE.parts[-2:])}/clock.py"
        )
        + "; rank 2: its Keeper has not told within 1.0 s"
    )
    assert shown.files == ("stacks/1.txt",)
    text = (record.directory / "stacks/1.txt").read_text()
    headings = [line for line in text.splitlines() if line.startswith("===")]
    assert headings == [
        "=== b, rank 1, process 2: its process is stopped",
        "=== spare, no member, process 4, starts",
        "=== a, rank 0, process 1, training thread 0x00000000000000aa",
    ]
    assert STACKS in text


def test_who_waits_says_for_which_tensor(record: RunRecord):
    awaited = "the sum of /gradients/model/lm_head.weight"
    dumps = {
        "a": StackDump(1, STACKS, 0xAA, awaited=awaited),
        "b": StackDump(2, STACKS, 0xAA, awaited=awaited),
        "c": StackDump(3, STACKS, 0xAA),
    }
    text = gather(record, lambda: dumps, ["c"]).text
    assert text.startswith("rank 2: train (/jobs/lm.py:9) > sleep")
    assert "; ranks 0, 1: train (/jobs/lm.py:9) > sleep" in text
    assert text.endswith(f", for {awaited}")


def test_of_very_many_hangs_the_newest_are_kept(record: RunRecord):
    for _ in range(25):
        shown = gather(record, lambda: {"a": StackDump(1, STACKS, 0xAA)}, [])
    assert shown.files == ("stacks/25.txt",)
    kept = sorted(int(path.stem) for path in (record.directory / "stacks").iterdir())
    assert kept == list(range(6, 26))


def test_a_file_has_a_bound(record: RunRecord, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trainflow.coordination.hang_evidence._MAX_FILE_BYTES", 100)
    (name,) = gather(record, lambda: {"a": StackDump(1, STACKS, 0xAA)}, []).files
    assert (record.directory / name).stat().st_size == 100


def test_keepers_that_fail_leave_a_reason_in_place_of_stacks(record: RunRecord):
    def fail() -> dict[str, StackDump]:
        raise KeyError("unforeseen")

    shown = gather(record, fail, ["a"])
    assert shown == Evidence("no stacks could be had (KeyError: 'unforeseen')")


def test_on_a_full_disk_the_places_are_told_all_the_same(record: RunRecord):
    with room_for(0):
        shown = gather(record, lambda: {"a": StackDump(1, STACKS, 0xAA)}, [])
    assert shown.files == ()
    assert "train (/jobs/lm.py:9)" in shown.text
    assert "can't be kept" in shown.text
    assert not list((record.directory / "stacks").iterdir())


def test_an_event_names_the_files(record: RunRecord):
    nodes: Any = Nodes(dict)
    evidence = HangEvidence(nodes, record, "jobs.lm:train")
    evidence.add_event(
        "hang", "a: no progress", Evidence("rank 0: f", ("stacks/1.txt",)), worker="a"
    )
    (event,) = record.events_since(0)
    assert event["text"] == "a: no progress. rank 0: f"
    assert event["data"] == {"worker": "a", "stacks": ["stacks/1.txt"]}
