"""``trainflow chaos run``: what is refused, what is printed, and the code it leaves with."""

import errno
import json
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import CallMain
from trainflow.cli import chaos_command
from trainflow.cli.exit_codes import ExitCode
from trainflow.coordination.chaos import campaign, ground
from trainflow.coordination.chaos.campaign import Report
from trainflow.coordination.chaos.fallen import FallenFault
from trainflow.coordination.chaos.figures import Figures
from trainflow.coordination.chaos.invariants import Verdict
from trainflow.errors import UnreachableError

GOOD = Verdict("every sample is used once", True, ("80 samples in 10 steps",))
BAD = Verdict("ranks end bitwise equal", False, ("ranks 0 hold cafe; ranks 1 hold beef",))
UNTOLD = Verdict("flipped bits are kept out", None, ("no bit was flipped",))
REPORT = Report(
    folder=Path("/home/chaos/chaos-abc"),
    faults=(
        FallenFault(1, "kill rank 1", "rank 1 (slot1-1.1), pid 7", "slot1-1.1", 5.0, 3, 0.25),
        FallenFault(2, "kill spare", None, None, 6.0, 4),
        FallenFault(3, "kill member"),
        FallenFault(4, "stop rank 0", at_s=6.5, after_step=4, undone="could not be done: why"),
        FallenFault(5, "slow rank 2", "rank 2", None, 7.0, 5, undone="it failed"),
        FallenFault(6, "kill rank 0", due_by="place", is_missed=True),
    ),
    verdicts=(GOOD, UNTOLD),
    figures=Figures(20.0, 0.1, 0.9, 0.5, 0.025, 0, 1, 12.0),
    runs=("tiny-a", "tiny-b"),
)


class FakeCampaigns:
    def __init__(self) -> None:
        self.report = REPORT
        self.calls: list[dict[str, Any]] = []
        self.signal: signal.Signals | None = None
        self.signal_at_close: signal.Signals | None = None
        self.on_open: Callable[[], None] = lambda: None
        self.closed = False

    def carry_out(self, made: Any, *, compares: bool) -> Report:
        self.calls.append({"compares": compares, "faults": len(made.faults), "job": made.job.name})
        if self.signal is not None:
            signal.raise_signal(self.signal)
        return self.report

    @contextmanager
    def open_ground(
        self, folder: Path, _plan: object, _job: object, address: str | None
    ) -> Generator[ground.Ground]:
        self.on_open()
        self.calls.append({"address": address})
        try:
            yield ground.Ground(folder)
        finally:
            for number in filter(None, (self.signal, self.signal_at_close)):
                signal.raise_signal(number)
            self.closed = True


@pytest.fixture
def campaigns(home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCampaigns:
    fake = FakeCampaigns()
    monkeypatch.setattr(ground, "open_ground", fake.open_ground)
    monkeypatch.setattr(
        campaign.Campaign,
        "carry_out",
        lambda made, compares: fake.carry_out(made, compares=compares),
    )
    return fake


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text("schedule:\n- {kind: kill, rank: 1, at_s: 1}\n- {kind: stop, at_step: 5}\n")
    return path


@pytest.fixture
def heeded_hangup() -> Iterator[None]:
    """Have a hangup end a command, even where these tests were started under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def call_chaos(call_main: CallMain, job_file: Path, plan: Path) -> CallMain:
    """Call the command on a good job and plan; returns its exit code."""
    return lambda *more: call_main("chaos", "run", job_file, "--plan", plan, *more)


def find_folder(home: Path) -> Path:
    (folder,) = (home / "chaos").iterdir()
    return folder


def test_a_campaign_is_carried_out_and_reported(
    campaigns: FakeCampaigns,
    call_main: CallMain,
    job_file: Path,
    plan: Path,
    home: Path,
    capsys: pytest.CaptureFixture[str],
):
    assert call_main("chaos", "run", job_file, "--plan", plan) == ExitCode.SUCCESS
    assert campaigns.calls == [{"address": None}, {"compares": True, "faults": 2, "job": "tiny"}]
    text = capsys.readouterr().out
    for told in (
        "1      3           kill rank 1  rank 1 (slot1-1.1), pid 7  0.25",
        "2      4           kill spare   nobody was there           -",
        "3      -           kill member  it was never due           -",
        "4      4           stop rank 0  could not be done: why     -",
        "5      5           slow rank 2  rank 2; it failed          -",
        "6      -           kill rank 0  nobody came to that place  -",
        "yes    every sample is used once  80 samples in 10 steps",
        "-      flipped bits are kept out  no bit was flipped",
        "not judged, for the reason beside it: flipped bits are kept out\n",
        "1 recoveries in 20.0 s of training; no step ran for 0.50 s of them (2.5%); 0 steps lost",
        "goodput 90.0%: undisturbed, a step takes 0.100 s",
    ):
        assert told in text
    folder = find_folder(home)
    assert json.loads((folder / "report.json").read_text())["holds"] is True
    assert len(json.loads((folder / "plan.json").read_text())["schedule"]) == 2


def test_a_broken_invariant_fails_with_its_evidence(
    campaigns: FakeCampaigns,
    call_main: CallMain,
    job_file: Path,
    plan: Path,
    capsys: pytest.CaptureFixture[str],
):
    campaigns.report = replace(REPORT, verdicts=(GOOD, BAD))
    arguments = ("chaos", "run", job_file, "--plan", plan, "--no-compare", "-o", "json")
    assert call_main(*arguments) == ExitCode.FAILED
    assert campaigns.calls[1]["compares"] is False
    answer = json.loads(capsys.readouterr().out)
    assert answer["holds"] is False
    assert answer["invariants"][1] == {
        "invariant": "ranks end bitwise equal",
        "holds": False,
        "evidence": ["ranks 0 hold cafe; ranks 1 hold beef"],
    }
    assert answer["figures"]["stalled_ratio"] == 0.025
    assert [each["victim"] for each in answer["faults"]][1:4] == [None] * 3


@pytest.mark.usefixtures("heeded_hangup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_as_all_is_taken_down_costs_no_report(
    campaigns: FakeCampaigns,
    call_chaos: CallMain,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
):
    campaigns.signal_at_close = number
    assert call_chaos() == ExitCode.SUCCESS
    assert campaigns.closed
    assert "every sample is used once" in capsys.readouterr().out
    assert json.loads((find_folder(home) / "report.json").read_text())["holds"] is True


@pytest.mark.usefixtures("heeded_hangup")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_campaign_that_a_signal_ends_claims_nothing_and_says_where_it_wrote(
    campaigns: FakeCampaigns,
    call_chaos: CallMain,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    code: int,
):
    campaigns.signal = number
    assert call_chaos() == code
    assert campaigns.closed
    told = capsys.readouterr()
    folder = find_folder(home)
    assert told.out == ""
    assert f"ended by {number.name} before it was over; no verdict is given" in told.err
    assert f"what it wrote is in {folder}, its runs' records in {home / 'runs'}" in told.err
    report = json.loads((folder / "report.json").read_text())
    assert (report["ended_early"], report["holds"]) == (number.name, None)
    assert (report["invariants"], report["faults"], report["runs"]) == ([], [], [])


def test_a_full_disk_costs_the_file_and_not_the_report(
    campaigns: FakeCampaigns,
    call_chaos: CallMain,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse(path: Path, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(chaos_command, "replace_file", refuse)
    assert call_chaos() == ExitCode.SUCCESS
    told = capsys.readouterr()
    assert "every sample is used once" in told.out
    assert "report.json can't be written (No space left on device)" in told.err


def test_where_no_cluster_answers_nothing_is_made(
    campaigns: FakeCampaigns,
    call_chaos: CallMain,
    home: Path,
):
    def refuse() -> None:
        raise UnreachableError("address: got '127.0.0.1:1'")

    campaigns.on_open = refuse
    assert call_chaos("--address", "127.0.0.1:1") == ExitCode.UNREACHABLE
    assert not (home / "chaos").exists()


@pytest.mark.parametrize(
    ("content", "more", "told"),
    [
        ("mix: [{kind: kil}]", (), "mix.0.kind: got 'kil'; expected 'kill', "),
        ("schedule: [{kind: kill, rank: 2, at_s: 1}]", (), "schedule.0.rank: got 2; expected at"),
        (
            "schedule: [{kind: drop_node, at_s: 1}]",
            ("--address", "10.0.0.1:6379"),
            "schedule.0.kind: got 'drop_node'; expected another kind with --address",
        ),
    ],
)
class TestAPlanThatIsWrong:
    @pytest.fixture(autouse=True)
    def _write(self, plan: Path, content: str) -> None:
        plan.write_text(content)

    @pytest.fixture
    def arguments(self, job_file: Path, plan: Path, more: tuple[str, ...]) -> list[object]:
        return ["chaos", "run", job_file, "--plan", plan, *more]

    def test_it_starts_nothing(
        self,
        campaigns: FakeCampaigns,
        call_main: CallMain,
        arguments: list[Any],
        told: str,
        capsys: pytest.CaptureFixture[str],
    ):
        assert call_main(*arguments) == ExitCode.USAGE
        assert told in capsys.readouterr().err
        assert campaigns.calls == []
