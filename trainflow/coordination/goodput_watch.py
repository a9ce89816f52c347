"""Keep the ledger of where a run's time goes, from what is recorded.

Every some hundred steps the ledger is kept in ``ledger.json`` beside the record. A new coordinator
goes on from there through the events and steps that were recorded since. So does a later attempt of
the job: the workers of the one before it were there until the last that is known of it.

Process: coordinator.  Thread: its event loop.
Blocks: for a small local write; as it begins, to read what was recorded.
Fails: as a follower, which is then told no more; on a full disk nothing is kept.
"""

import heapq
import json
import logging
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import dropwhile
from typing import Any

from trainflow.clock import Clock
from trainflow.computation.reports import StepReport
from trainflow.coordination.metric_export import MetricExport
from trainflow.coordination.moments import place_moment
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RESUMING, RunState
from trainflow.monitoring import metrics
from trainflow.monitoring.failure_causes import FailureCause, name_cause
from trainflow.monitoring.ledger import CAUSES, NS_PER_S, PRODUCTIVE, Ledger, find_goodput

logger = logging.getLogger(__name__)

KEEP_EVERY = 500
_SHOW_EVERY_S = 5.0
_TOLD = "goodput"
_TOLD_BY_OTHERS = frozenset({RESUMING, *(str(state) for state in RunState if state.is_terminal)})
"""Kinds of events that come long after the run itself, if its cluster has died."""

Json = Mapping[str, Any]


class GoodputWatch:
    """Follows one run, from its submission on."""

    def __init__(self, record: RunRecord, export: MetricExport, clock: Clock):
        self._record = record
        self._export = export
        self._clock = clock
        self._path = record.directory / "ledger.json"
        self._ledger = Ledger()
        self._submitted_s: float = 0  # since when first workers are waited for; 0: they aren't
        self._last_event = 0
        self._heard_ns = 0  # when the newest event was that the run itself told
        self._catch_up()
        # What had gone into the causes by now, which this coordinator's counters lack.
        self._before_ns = self._charged_ns()
        self._shown_ns = dict.fromkeys(CAUSES, 0)
        self._shown_at_s = -_SHOW_EVERY_S

    def describe(self) -> dict[str, Any]:
        """Return where the time went so far, as JSON: seconds of workers, by cause."""
        charged_ns = self._charged_ns()
        return {
            "ratio": find_goodput(charged_ns),
            "worker_s": sum(charged_ns.values()) / NS_PER_S,
            "seconds": {name: value / NS_PER_S for name, value in charged_ns.items() if value},
        }

    def tick(self) -> None:
        """Show what it has come to; called about twice a second."""
        now_s = self._clock.monotonic_s()
        if now_s - self._shown_at_s < _SHOW_EVERY_S:
            return
        self._shown_at_s = now_s
        self._show()

    def end(self, state: RunState) -> None:
        """The run is over: tell where its time went, once."""
        self._ledger.end(_to_ns(self._clock.unix_s()), is_failed=state is RunState.FAILED)
        self._show()
        figures = self.describe()
        if figures["ratio"] is not None and not self._record.has(_TOLD):
            told = {"state": state.value} | figures
            self._record.add_event(_TOLD, describe_goodput(figures), **told)

    def on_event(self, event: Json) -> None:
        """An event was recorded."""
        self._last_event = event["number"]
        at_ns = _to_ns(event["at_s"])
        self._on_run(event, at_ns)
        self._on_workers(event["kind"], event["text"], event["data"], at_ns)
        if event["kind"] not in _TOLD_BY_OTHERS:
            self._heard_ns = at_ns

    def _on_run(self, event: Json, at_ns: int) -> None:
        """Take what begins and ends all workers' time."""
        data, ledger = event["data"], self._ledger
        match event["kind"]:
            case "submitted":
                if not self._submitted_s:  # else one has died before it had launched any
                    self._bury()
                    self._submitted_s = event["at_s"]
            case "launched":
                self._launch(data.get("workers", ()), event)
            case "coordinator_restarted" if "workers" in data:
                if self._submitted_s:  # the one before has died in the midst of launching them
                    self._launch(data["workers"], event)
                ledger.find(data["workers"], at_ns)
            case "goodput":
                ledger.end(at_ns, is_failed=data.get("state") == RunState.FAILED)
            case "attempt":
                self._bury()
                self._submitted_s = 0
            case _:
                pass

    def _launch(self, workers: Collection[str], event: Json) -> None:
        begun_s, self._submitted_s = self._submitted_s or event["at_s"], 0
        self._ledger.launch(workers, _to_ns(begun_s), _to_ns(event["at_s"]))

    def _bury(self) -> None:
        """Workers of before are gone, and nobody may have lived to tell when."""
        self._ledger.end(max(self._heard_ns, self._ledger.mark_ns), is_failed=True)

    def _on_workers(self, kind: str, text: str, data: Json, at_ns: int) -> None:
        """Take what becomes of single workers, and of the members."""
        ledger = self._ledger
        match kind:
            case "respawned" if "worker" in data:
                ledger.ask(data["worker"], at_ns)
            case "withdrawn":
                ledger.lose(data["worker"], FailureCause.OTHER, at_ns)
            case "warm":
                ledger.warm(data["worker"], at_ns)
            case "failure":
                ledger.lose(data.get("worker"), name_cause(text, data), at_ns)
            case "waiting":
                ledger.wait(at_ns)
            case "epoch":
                base = data.get("base", str(ledger.last_step))
                ledger.form(data["members"], int(base.partition("@")[0]), at_ns)
            case _:
                pass

    def on_step(self, report: StepReport) -> None:
        """A committed step was recorded."""
        before, line = self._ledger.last_step, self._record.newest_step
        assert line is not None, "it has just been recorded"
        self._take_step(line)
        if before // KEEP_EVERY < report.step // KEEP_EVERY:
            self._keep(report)

    def _take_step(self, line: Json) -> None:
        """Take a step as it is recorded, so that a new coordinator comes to the same."""
        told_ns = _to_ns(line["committed_at_s"])
        # Earlier releases didn't say when they had heard of it.
        heard_ns = _to_ns(line["heard_at_s"]) if "heard_at_s" in line else told_ns
        at_ns = place_moment(told_ns, self._ledger.mark_ns, heard_ns)
        is_applied = line.get("applied", True)  # earlier releases didn't say
        phases_s = line.get("phases_s", {})
        self._ledger.commit(line["step"], at_ns, phases_s, is_applied=is_applied)

    def _charged_ns(self) -> dict[str, int]:
        """Return what went into the causes until now."""
        return self._ledger.charged_until(_to_ns(self._clock.unix_s()))

    def _show(self) -> None:
        """Add to the counters what has come to the causes since.

        What the ledger takes back of a cause stays in its counter, and the next that goes into the
        cause is not shown until it has made up for that.
        """
        charged_ns = self._charged_ns()
        for cause in CAUSES:
            if cause != PRODUCTIVE:
                before_ns = self._before_ns[cause] = min(self._before_ns[cause], charged_ns[cause])
                new_ns = max(0, charged_ns[cause] - before_ns - self._shown_ns[cause])
                self._export.add(metrics.BADPUT, new_ns / NS_PER_S, cause=cause)
                self._shown_ns[cause] += new_ns
        ratio = find_goodput(charged_ns)
        if ratio is not None:
            self._export.show(metrics.GOODPUT, ratio)

    # Going on from an earlier coordinator

    def _keep(self, report: StepReport) -> None:
        kept = {
            "event": self._last_event,
            "submitted_s": self._submitted_s,
            "step": report.step,
            "epoch": str(report.epoch),
            "ledger": self._ledger.to_json(),
        }
        part = self._path.with_suffix(".part")
        try:
            # Not flushed, which could hold the loop up: a loss of power may cost what was kept.
            part.write_text(json.dumps(kept))
            part.replace(self._path)
        except OSError:
            logger.exception("the ledger could not be kept")

    def _catch_up(self) -> None:
        """Take what was recorded before, from where the ledger was kept."""
        kept: Json = {"event": 0, "step": 0, "epoch": "", "submitted_s": 0}
        if self._path.exists():
            try:
                found = json.loads(self._path.read_text())
                self._ledger, kept = Ledger.from_json(found["ledger"]), found
            except (OSError, ValueError, KeyError):
                logger.exception("%s is damaged: the ledger begins anew", self._path)
        self._last_event, self._submitted_s = kept["event"], kept["submitted_s"]
        events = self._record.read_events_since(kept["event"])
        for each in _merge(events, self._steps_after(kept)):
            if "kind" in each:
                self.on_event(each)
            else:
                self._take_step(each)

    def _steps_after(self, kept: Json) -> Iterator[Json]:
        """Yield the recorded steps after the one with which the ledger was kept, in their order."""
        lines = self._record.steps_since(0)
        newest = (kept["step"], kept["epoch"])
        after = dropwhile(lambda line: (line["step"], line["epoch"]) != newest, lines)
        if next(after, None) is None:
            return iter(lines)  # nothing was kept, or it is older than what is in memory
        return after


def _merge(events: Sequence[Json], steps: Iterable[Json]) -> Iterator[Json]:
    """Yield events and steps in the order in which they were recorded."""
    times_s = [event["at_s"] for event in events]

    def place(each: Json) -> tuple[int, bool]:
        if "kind" in each:
            return each["number"], False
        if "after_event" in each:
            return each["after_event"], True
        num_before = bisect_right(times_s, each["committed_at_s"])  # of an earlier release
        return events[num_before - 1]["number"] if num_before else 0, True

    return heapq.merge(events, steps, key=place)


def describe_goodput(goodput: Json) -> str:
    """Say what share of the workers' time was productive, and what took most of the rest."""
    seconds, total_s = goodput["seconds"], goodput["worker_s"]
    others = sorted((e for e in seconds.items() if e[0] != PRODUCTIVE), key=lambda e: -e[1])
    rest = ", ".join(f"{name} {value / total_s:.1%}" for name, value in others[:4])
    share = f"{goodput['ratio']:.1%} of {total_s:.1f} worker-seconds went into steps that count"
    return f"{share}; most of the rest: {rest}" if rest else share


def _to_ns(at_s: float) -> int:
    return round(at_s * NS_PER_S)
