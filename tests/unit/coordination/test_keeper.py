"""A node's Keeper, with a coordinator that answers as a test says."""

import math
import multiprocessing
import os
import queue
import signal
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError

from tests.unit.coordination.standing import WORKER_ID, start_standing
from trainflow.checkpointing.held_residuals import HeldResiduals
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.stamps import StampWriter, read_stamp
from trainflow.config.job import SnapshotConfig
from trainflow.coordination import keeper as keeper_module
from trainflow.coordination.forkserver.settings import ForkServerSettings
from trainflow.coordination.keeper import Heartbeat, HeartbeatReply, Keeper
from trainflow.coordination.keeper_settings import KeeperSettings
from trainflow.coordination.lease import LeaseEnd
from trainflow.coordination.preemption_notice import PreemptionNotice
from trainflow.coordination.stack_dumps import locate_stacks
from trainflow.epochs import EpochId, PeerAddress, Phase
from trainflow.monitoring.usage import Usage

WITHIN_S = 10.0


class StillClock:
    """Time stands; whoever sleeps waits until the test lets it go on."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.rounds = queue.SimpleQueue[None]()
        self.go = queue.SimpleQueue[None]()

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return 5000.0 + self.now_s

    def sleep(self, duration_s: float) -> None:
        self.rounds.put(None)
        self.go.get()

    def next_round(self) -> None:
        """Let the sleeper make one more round."""
        self.go.put(None)
        self.rounds.get(timeout=WITHIN_S)


class Coordinator:
    """Answers heartbeats; ``answers`` is called with each."""

    def __init__(self) -> None:
        self.beats: list[dict[str, Any]] = []
        self.there_at_close: list[bool] = []
        self.error: Exception | None = None
        self.heartbeat = SimpleNamespace(remote=self._beat, options=self._options)

    def _options(self, *, max_task_retries: int) -> SimpleNamespace:
        assert max_task_retries == 0, "a later coordinator would take an old beat for a new one"
        return self.heartbeat

    def _beat(self, beat: Heartbeat) -> HeartbeatReply:
        self.beats.append(beat.progress)
        if self.error is not None:
            raise self.error
        return HeartbeatReply(incarnation=3, hang_timeout_s=30.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StillClock:
    clock = StillClock()
    monkeypatch.setattr(keeper_module, "SYSTEM_CLOCK", clock)
    # The only one that sleeps is to be the loop.
    monkeypatch.setattr(keeper_module, "keep_awake", lambda *_: None)
    return clock


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Coordinator:
    coordinator = Coordinator()
    context = SimpleNamespace(get_node_id=lambda: "node-1")
    monkeypatch.setattr(keeper_module.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(keeper_module.ray, "get_actor", lambda *_: coordinator)
    monkeypatch.setattr(keeper_module.ray, "get", lambda answer, **_: answer)
    folder = tmp_path / "job-1" / "node-1"
    monkeypatch.setattr(keeper_module.names, "stamp_directory", lambda *_: folder)
    replicator = SimpleNamespace(trouble=None)
    memory = SimpleNamespace(
        held=HeldSnapshots(folder),
        residuals=HeldResiduals(folder),
        ready=lambda: (),
        replicator=replicator,
        address=PeerAddress("127.0.0.1", 7, "token"),
        tidy=lambda *_: None,
        close=lambda: coordinator.there_at_close.append(folder.exists()),
    )
    monkeypatch.setattr(keeper_module, "NodeMemory", lambda *_: memory)
    return coordinator


def start_keeper(clock: StillClock, **more: Any) -> Keeper:
    """Return one whose loop sleeps: under way it could outlive what stands in for Ray."""
    keeper = Keeper("job-1", KeeperSettings(10.0, None, SnapshotConfig(), **more))
    clock.rounds.get(timeout=WITHIN_S)
    return keeper


@pytest.fixture
def keeper(clock: StillClock, coordinator: Coordinator) -> Keeper:
    return start_keeper(clock)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    killed: list[int] = []
    monkeypatch.setattr(keeper_module.os, "kill", lambda pid, _: killed.append(pid))
    return killed


@pytest.fixture
def stamps(tmp_path: Path) -> Iterator[StampWriter]:
    writer = StampWriter(tmp_path / "job-1" / "node-1" / "slot0-1.0.stamp")
    yield writer
    writer.close()


def test_a_round_that_fails_is_not_its_last(
    keeper: Keeper, clock: StillClock, coordinator: Coordinator
):
    coordinator.error = KeyError("unforeseen")
    clock.now_s += 1.5
    clock.next_round()
    coordinator.error = None
    clock.now_s += 1.5
    clock.next_round()
    assert len(coordinator.beats) == 3


def test_nothing_is_taken_any_more_before_what_is_there_is_removed(
    keeper: Keeper, coordinator: Coordinator, stamps: StampWriter, killed: list[int], tmp_path: Path
):
    keeper.clean_up()
    assert killed == [os.getpid()]
    assert coordinator.there_at_close == [True]
    assert not (tmp_path / "job-1").exists()


def test_a_beat_tells_that_another_node_takes_no_copies(
    keeper: Keeper, clock: StillClock, coordinator: Coordinator
):
    told: list[str | None] = []

    def hear(beat: Heartbeat) -> HeartbeatReply:
        told.append(beat.trouble)
        return HeartbeatReply(incarnation=3, hang_timeout_s=30.0)

    coordinator.heartbeat.remote = hear
    for trouble in ("it is full", None):
        keeper._memory.replicator.trouble = trouble
        clock.now_s += 1.5
        clock.next_round()
    assert told == ["it is full", None]


@pytest.mark.usefixtures("stamps")
def test_the_lease_is_kept_also_when_heartbeats_fail_in_an_unforeseen_way(
    keeper: Keeper, clock: StillClock, coordinator: Coordinator, killed: list[int]
):
    coordinator.error = KeyError("unforeseen")
    for _ in range(3):
        clock.now_s += 4.0
        clock.next_round()
    assert len(killed) == 1


@pytest.mark.usefixtures("stamps")
def test_an_unanswered_keeper_kills_its_workers_once_the_lease_is_over(
    keeper: Keeper, clock: StillClock, coordinator: Coordinator, killed: list[int]
):
    coordinator.error = GetTimeoutError()
    clock.now_s += 9.0
    clock.next_round()
    assert not killed
    clock.now_s += 2.0
    clock.next_round()
    assert len(killed) == 1


@pytest.mark.usefixtures("stamps", "killed")
def test_whom_it_has_ended_is_told_until_that_is_answered(
    keeper: Keeper, clock: StillClock, coordinator: Coordinator
):
    told: list[tuple[LeaseEnd, ...]] = []

    def hear(beat: Heartbeat) -> HeartbeatReply:
        told.append(beat.lease_ends)
        if len(told) <= 2:  # it is heard, and its answer is not
            raise GetTimeoutError
        return HeartbeatReply(incarnation=3, hang_timeout_s=30.0)

    coordinator.error = GetTimeoutError()
    for after_s in (9.5, 1.0):
        clock.now_s += after_s
        clock.next_round()
    coordinator.heartbeat.remote = hear
    for _ in range(2):
        clock.now_s += 1.5
        clock.next_round()
    ended = (LeaseEnd(("slot0-1.0",), 5110.5, 10.5),)
    assert told == [ended, ended, ended, ()]


@pytest.mark.usefixtures("stamps")
def test_a_lease_counts_from_when_was_asked_what_is_answered(
    keeper: Keeper, clock: StillClock, coordinator: Coordinator, killed: list[int]
):
    """The coordinator counts from when it has heard that, however late its answer comes."""

    def answer_late(_: Heartbeat) -> HeartbeatReply:
        clock.now_s += 0.9
        return HeartbeatReply(incarnation=3, hang_timeout_s=30.0)

    coordinator.heartbeat.remote = answer_late
    clock.now_s = asked_at_s = 105.0
    clock.next_round()
    coordinator.heartbeat.remote = coordinator._beat
    coordinator.error = GetTimeoutError()
    clock.now_s = asked_at_s + 10.0
    clock.next_round()
    assert not killed
    clock.now_s = asked_at_s + 10.1
    clock.next_round()
    assert len(killed) == 1


class Silence:
    """Nobody answers, until ``answering`` do; who waits waits as long as it may."""

    def __init__(self, clock: StillClock, monkeypatch: pytest.MonkeyPatch):
        self.waits_s: list[float] = []
        self.answering: set[str] = set()
        self._clock = clock
        monkeypatch.setattr(keeper_module.ray, "get", self._get)
        monkeypatch.setattr(keeper_module.ray, "wait", self._wait)

    def peers(self, *names: str) -> list[Any]:
        return [
            SimpleNamespace(ping=SimpleNamespace(remote=lambda name=each: name)) for each in names
        ]

    def _get(self, answer: Any, timeout: float = math.inf) -> Any:
        if isinstance(answer, str):
            return answer
        self._pass(timeout)
        raise GetTimeoutError

    def _wait(self, answers: list[str], *, num_returns: int, timeout: float) -> Any:
        done = [each for each in answers if each in self.answering]
        if len(done) < num_returns:
            self._pass(timeout)
        return done, [each for each in answers if each not in done]

    def _pass(self, for_s: float) -> None:
        self.waits_s.append(round(for_s, 6))
        self._clock.now_s += for_s


@pytest.mark.usefixtures("stamps", "coordinator")
def test_no_answer_is_waited_for_beyond_the_end_of_the_lease(
    keeper: Keeper, clock: StillClock, killed: list[int], monkeypatch: pytest.MonkeyPatch
):
    silence = Silence(clock, monkeypatch)
    keeper._peers = silence.peers("node-2", "node-3")
    for asked_at_s, waits_s in ((107.0, [1.0, 1.0]), (109.25, [0.75, 0.0])):
        clock.now_s = asked_at_s
        silence.waits_s.clear()
        clock.next_round()
        assert silence.waits_s == waits_s
    assert not killed
    clock.now_s += 0.1
    clock.next_round()
    assert len(killed) == 1


@pytest.mark.usefixtures("stamps", "coordinator")
def test_peers_have_all_the_time_that_a_silent_coordinator_has(
    keeper: Keeper, clock: StillClock, killed: list[int], monkeypatch: pytest.MonkeyPatch
):
    silence = Silence(clock, monkeypatch)
    keeper._peers = silence.peers("node-2", "node-3")
    clock.now_s = 107.0
    clock.next_round()
    silence.answering = {"node-3"}
    clock.now_s = 109.5
    clock.next_round()
    assert keeper._lease.renewed_at_s == 109.5
    clock.now_s = 118.0
    clock.next_round()
    assert not killed
    assert keeper._lease.renewed_at_s == 119.0, "asked after the coordinator, as they had answered"


@pytest.mark.usefixtures("stamps")
@pytest.mark.parametrize(
    ("is_counted", "num_killed"), [(True, 0), (False, 1), (None, 1)], ids=["yes", "no", "no answer"]
)
def test_a_keeper_that_has_stood_still_itself_asks_before_it_kills(
    keeper: Keeper,
    clock: StillClock,
    coordinator: Coordinator,
    killed: list[int],
    *,
    is_counted: bool | None,
    num_killed: int,
):
    beats: list[Heartbeat] = []

    def answer(beat: Heartbeat) -> HeartbeatReply:
        beats.append(beat)
        if is_counted is None:
            raise GetTimeoutError
        return HeartbeatReply(incarnation=3, hang_timeout_s=30.0, is_counted=is_counted)

    coordinator.heartbeat.remote = answer
    clock.now_s += 45.0  # in which nothing of it ran
    clock.next_round()
    assert len(killed) == num_killed
    told = [(end.unheard_s, end.is_given_up) for beat in beats for end in beat.lease_ends]
    assert told == [(45.0, is_counted is False)] * num_killed
    clock.next_round()
    assert [beats[0].is_counted, beats[-1].is_counted] == [True, is_counted is not False]


@pytest.mark.usefixtures("stamps")
def test_a_keeper_that_ran_all_the_time_and_heard_nobody_asks_no_more(
    keeper: Keeper, clock: StillClock, coordinator: Coordinator, killed: list[int]
):
    coordinator.error = GetTimeoutError()
    keeper._next_beat_s = clock.now_s + 1000.0
    for _ in range(101):
        clock.now_s += 0.1
        keeper._awake.beat(clock.now_s)
    num_told = len(coordinator.beats)
    clock.next_round()
    assert len(killed) == 1
    assert len(coordinator.beats) == num_told


@pytest.mark.usefixtures("stamps")
def test_an_order_of_an_older_coordinator_is_refused(keeper: Keeper, killed: list[int]):
    assert keeper.promise(5) == 3  # learnt from the first heartbeat
    assert not keeper.fence(4, "slot0-1.0")
    assert not killed
    assert keeper.fence(5, "slot0-1.0")
    assert len(killed) == 1


def test_a_worker_that_has_yet_to_stamp_keeps_its_file_and_is_found_by_it(
    keeper: Keeper, killed: list[int], tmp_path: Path
):
    path = tmp_path / "job-1" / "node-1" / "slot0-1.0.stamp"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(64))
    assert not keeper.fence(5, "slot0-1.0")
    assert not killed
    assert path.exists()
    with closing(StampWriter(path)):
        assert keeper.fence(5, "slot0-1.0")
        assert killed == [os.getpid()]


def test_a_worker_that_is_killed_shows_its_stacks_before_and_leaves_no_file(
    keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(keeper_module, "SYSTEM_CLOCK", SYSTEM_CLOCK)
    folder = tmp_path / "job-1" / "node-1"
    process = start_standing(folder)
    try:
        shown = keeper.dump_stacks((WORKER_ID, "slot9-1.9"))
        assert shown.keys() == {WORKER_ID}
        assert "stand_still" in shown[WORKER_ID].text
        assert keeper.fence(5, WORKER_ID)
        assert process.wait(WITHIN_S) == -signal.SIGKILL
        assert not locate_stacks(folder, WORKER_ID).exists()
    finally:
        process.kill()
        process.communicate()


def test_time_in_which_the_keeper_did_not_run_either_is_not_held_against_a_worker(
    keeper: Keeper, clock: StillClock, coordinator: Coordinator, stamps: StampWriter
):
    def seen_after(*, keeper_runs: bool) -> float:
        stamps.stamp(Phase.COMPUTE, step=1, epoch=EpochId(1, 1), sequence=1)
        stamp = read_stamp(stamps._path)
        assert stamp is not None
        clock.now_s = stamp.progress_at_s
        keeper._awake.beat(clock.now_s)
        for _ in range(100):
            clock.now_s += 0.4 if keeper_runs else 4.0
            if keeper_runs:
                keeper._awake.beat(clock.now_s)
        keeper._lease.renew(clock.now_s)
        clock.next_round()
        return coordinator.beats[-1]["slot0-1.0"].progress_age_s

    assert seen_after(keeper_runs=True) == pytest.approx(40.0)
    assert seen_after(keeper_runs=False) == pytest.approx(0.1)


def test_that_a_worker_goes_on_is_told_at_once_as_that_it_stood_still_was(
    keeper: Keeper, clock: StillClock, coordinator: Coordinator, stamps: StampWriter
):
    limit_s = 0.4  # shorter than what counts as a pause of the Keeper
    num_told = 0

    def hear(_: Heartbeat) -> HeartbeatReply:
        nonlocal num_told
        num_told += 1
        return HeartbeatReply(incarnation=3, hang_timeout_s=limit_s)

    def look(after_s: float) -> int:
        """Return how often it was told that a worker did something, when it is looked then."""
        stamps.stamp(Phase.COMPUTE, step=1, epoch=EpochId(1, 1), sequence=1)
        stamp = read_stamp(stamps._path)
        assert stamp is not None
        keeper._awake.beat(stamp.progress_at_s)
        clock.now_s = stamp.progress_at_s + after_s
        keeper._lease.renew(clock.now_s)
        keeper._next_beat_s = clock.now_s + 1000.0
        clock.next_round()
        return num_told

    coordinator.heartbeat.remote = hear
    keeper._hang_timeout_s = limit_s
    assert [look(each) for each in (0.1, 0.41, 0.41, 0.1, 0.1)] == [0, 1, 2, 3, 3]


def test_a_beat_tells_what_workers_take(
    keeper: Keeper, clock: StillClock, coordinator: Coordinator, stamps: StampWriter
):
    stamps.note_usage(Usage(900, 5000, 0.25))
    clock.now_s += 1.5
    clock.next_round()
    assert coordinator.beats[-1]["slot0-1.0"].usage == Usage(900, 5000, 0.25)


def test_what_a_dead_worker_stamped_last_is_removed(
    keeper: Keeper, clock: StillClock, tmp_path: Path
):
    """Nobody may have noted its death: it counts as no worker, and its memory as a dead one's."""
    path = tmp_path / "job-1" / "node-1" / "slot0-1.0.stamp"
    process = multiprocessing.get_context("fork").Process(
        target=lambda: StampWriter(path) and os._exit(0)
    )
    process.start()
    process.join()
    assert path.exists()
    clock.next_round()
    assert not path.exists()


def test_a_notice_of_preemption_is_told_at_once_and_again_with_each_beat(
    keeper: Keeper, clock: StillClock, coordinator: Coordinator
):
    told: list[PreemptionNotice | None] = []

    def hear(beat: Heartbeat) -> HeartbeatReply:
        told.append(beat.notice)
        return HeartbeatReply(incarnation=3, hang_timeout_s=30.0)

    coordinator.heartbeat.remote = hear
    any_poll: Any = SimpleNamespace(newest=None, has_answered=True, trouble=None)
    keeper._notices = any_poll
    clock.next_round()
    assert told == []
    notice = any_poll.newest = PreemptionNotice(30.0)
    for _ in range(3):
        clock.next_round()
    assert told == [notice]
    clock.now_s += 1.5
    clock.next_round()
    any_poll.newest = None
    clock.now_s += 1.5
    clock.next_round()
    assert told == [notice, notice, None]


@pytest.mark.parametrize("how", ["file", "source", "nothing"])
def test_it_asks_what_the_job_names_whether_its_machine_stays(
    clock: StillClock, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, how: str
):
    asked: list[tuple[str, tuple[str, ...]]] = []

    def watch(name: str, more: Any, _: object) -> Any:
        asked.append((name, more))
        return SimpleNamespace(newest=None, has_answered=True, trouble=None)

    monkeypatch.setattr(keeper_module, "get_node_ip_address", lambda: "10.0.0.7")
    monkeypatch.setattr(keeper_module, "watch_file", watch)
    monkeypatch.setattr(keeper_module, "watch_plugin", watch)
    named: dict[str, Any] = {
        "file": {"notice_file": "/run/preempted"},
        "source": {"notice_source": "notices:Spot", "import_paths": ("/jobs",)},
        "nothing": {},
    }
    start_keeper(clock, **named[how])
    expected = {"file": ("/run/preempted", "10.0.0.7"), "source": ("notices:Spot", ("/jobs",))}
    assert asked == ([expected[how]] if how in expected else [])


@pytest.mark.parametrize("is_restarted", [False, True])
def test_workers_are_forked_until_the_job_is_over(
    keeper: Keeper, clock, request, monkeypatch: pytest.MonkeyPatch, *, is_restarted: bool
):
    assert keeper.fork_command() is None, "the job wants none"
    calls: list[str] = []
    settings = ForkServerSettings((), 1.0)

    def open_fork_server(given: ForkServerSettings, _clock: Any) -> Any:
        assert given == settings
        noted = {each: partial(calls.append, each) for each in ("prepare", "close")}
        return SimpleNamespace(command=lambda: "by this", **noted)

    monkeypatch.setattr(keeper_module, "open_fork_server", open_fork_server)
    if is_restarted:
        request.getfixturevalue("stamps")
    keeper = start_keeper(clock, forks=settings)
    monkeypatch.setattr(keeper._workers, "kill_all", lambda: calls.append("kill"))
    assert keeper.fork_command() == "by this"
    keeper.clean_up()
    prepared = ["prepare"] if is_restarted else []  # who replaces one is not to wait
    assert calls == [*prepared, "close", "kill"], "no fork begins that isn't ended"


@pytest.mark.parametrize("has_answered", [False, True])
def test_a_beat_says_whether_the_provider_has_answered(
    keeper: Keeper, clock: StillClock, coordinator: Coordinator, *, has_answered: bool
):
    told: list[tuple[bool, str | None]] = []

    def hear(beat: Heartbeat) -> HeartbeatReply:
        told.append((beat.knows_notice, beat.notice_trouble))
        return HeartbeatReply(incarnation=3, hang_timeout_s=30.0)

    coordinator.heartbeat.remote = hear
    any_poll: Any = SimpleNamespace(newest=None, has_answered=has_answered, trouble="no")
    keeper._notices = any_poll
    clock.now_s += 1.5
    clock.next_round()
    assert told == [(has_answered, "no")]


@pytest.mark.usefixtures("stamps", "coordinator")
def test_of_all_that_are_introduced_it_asks_the_others_and_calls_each_before(
    keeper: Keeper, clock: StillClock
):
    called: list[str] = []
    other = SimpleNamespace(ping=SimpleNamespace(remote=lambda: called.append("other")))
    keeper.introduce({"node-1": "itself", "node-2": other})
    assert keeper._peers == [other]
    clock.now_s += 1.5
    clock.next_round()
    assert called == ["other"], "as the coordinator has answered: later Ray's head may not"


def test_what_workers_print_is_followed_until_they_are_gone(
    clock: StillClock, coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: list[str] = []

    class Keeping:
        def __init__(self, stamps: Path, directory: Path):
            calls.append(f"of {stamps.name} in {directory}")

        def start(self) -> None:
            calls.append("start")

        def look(self) -> None:
            calls.append("look")

        def finish(self) -> None:
            calls.append("finish")

    monkeypatch.setattr(keeper_module, "OutputKeeping", Keeping)
    keeper = start_keeper(clock, directory="/runs/job-1")
    keeper.clean_up()
    assert calls == ["of node-1 in /runs/job-1", "start", "look", "finish"]
