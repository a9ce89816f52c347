"""How much may go wrong, and how soon it is noticed: the job file's section ``failures``.

Process: any.  Pure: plain values in, a frozen configuration out.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt

from trainflow.config.communication import CommunicationConfig
from trainflow.config.parallel import ParallelConfig
from trainflow.config.problems import Problem
from trainflow.config.section import LONGEST_S, PositiveSeconds, Section, is_module_path

COLLECTIVE_FLOOR_S, COLLECTIVES_A_HANG = 1800.0, 2.0
"""Seconds after which a collective gives up at least, and over the hang timeout: it names nobody,
so whoever is to blame has to be found long before."""

_HOST = "{host}"
_PROBE_AFTER_S = 60.0


def _check_file_path(path: str) -> str:
    if not path.startswith("/") or path.endswith(("/", "/.", "/..")) or not path.isprintable():
        raise ValueError("the path of a file, from the root, as /run/preempted, or null")
    if set("{}") & set(path.replace(_HOST, "")):
        raise ValueError(f"no other braces than {_HOST}, which stands for the node's address")
    return path


def _check_source_path(path: str) -> str:
    if not is_module_path(path):
        raise ValueError("module:name, as in clouds.notices:Spot, or null")
    return path


FilePath = Annotated[str, AfterValidator(_check_file_path)]
SourcePath = Annotated[str, AfterValidator(_check_source_path)]


class FailuresConfig(Section):
    """How much may go wrong, and how soon it is noticed."""

    max_failures: NonNegativeInt | None = 100
    """Failures within ``window_s``, or since the last committed step where that is longer, after
    which the job stops; null never stops it. Spares that are lost while a member lives are none."""

    max_hangs: PositiveInt | None = 10
    """Epochs in a row, without a step committed, in which a step may hang; the job stops after one
    more. null never stops it."""

    max_preemptions: NonNegativeInt | None = None
    """The same of workers that are lost with a node of which there was notice; they are no
    failures."""

    max_lost_clusters: NonNegativeInt = 0
    """How often the service goes on with the job by itself, as its next attempt, after its cluster
    was lost with its head; 0: people do. Of a job that the service has submitted, with a
    ``checkpoint.url``."""

    window_s: Annotated[float, Field(ge=1, le=LONGEST_S)] = 3600.0
    """Seconds for which a failure or a preemption counts; a failure also until a step is
    committed."""

    isolate_after: PositiveInt | None = None
    """Worker failures on one node within ``window_s`` after which it takes no more ranks; null
    isolates none, nor is the last node."""

    probe_after_s: PositiveSeconds = _PROBE_AFTER_S
    """Seconds until an isolated node is tried again; each further time twice as many."""

    hang_timeout_s: Literal["auto"] | Annotated[float, Field(ge=1, le=LONGEST_S)] = "auto"
    """Seconds without progress after which a worker is killed, at least those between two
    heartbeats; auto follows the step time."""

    replace_stragglers: bool = False
    """Whether a rank that is slower than the others in step after step goes to a spare, if one is
    warm, between two steps."""

    spot_check_every_steps: PositiveInt | None = None
    """Steps between two in which every rank computes one and the same microbatch first, so that one
    that computes other bits than the others is found; null: none. It loses its rank."""

    preemption_notice: FilePath | None = None
    """File that is on a node once its machine is to be taken back; its ranks leave it then. Holds
    the seconds from when it was written, or a moment; empty: now. {host}: the node's address."""

    preemption_source: SourcePath | None = None
    """Class ``module:name``, built without arguments on each node, whose ``poll_notice`` says
    whether the machine is to be taken back; in place of such a file."""

    lease_s: Annotated[float, Field(ge=3, le=LONGEST_S)] = 10.0
    """Seconds unheard after which a node kills its own workers; several heartbeats of 1 s."""

    def conflicts(
        self,
        communication: CommunicationConfig,
        parallel: ParallelConfig,
        *,
        deterministic: bool,
        has_store: bool,
    ) -> list[Problem]:
        """Return what is wrong with settings that are right one by one.

        Args:
            communication: how gradients travel.
            parallel: how the model is spread.
            deterministic: ``training.deterministic``.
            has_store: there is a ``checkpoint.url``.
        """
        return [
            *self._resumption_conflicts(has_store=has_store),
            *self._lease_conflicts(),
            *self._notice_conflicts(),
            *self._isolation_conflicts(),
            *self._straggler_conflicts(communication, parallel),
            *self._spot_check_conflicts(parallel, deterministic=deterministic),
        ]

    def _resumption_conflicts(self, *, has_store: bool) -> list[Problem]:
        """Of a job without a store nothing is left to go on from."""
        if has_store or not self.max_lost_clusters:
            return []
        got, change = str(self.max_lost_clusters), "set checkpoint.url, or leave this out"
        return [Problem("failures.max_lost_clusters", got, "0 without checkpoint.url", change)]

    def _lease_conflicts(self) -> list[Problem]:
        """A node that is silent has to be given up before those who wait for its ranks give up."""
        hang_s = 0.0 if self.hang_timeout_s == "auto" else self.hang_timeout_s
        most_s = max(COLLECTIVE_FLOOR_S / COLLECTIVES_A_HANG, hang_s)
        if self.lease_s <= most_s:
            return []
        gives_up_s = COLLECTIVES_A_HANG * most_s
        expected = f"at most {most_s:g}, as a collective gives up after {gives_up_s:g} s"
        return [Problem("failures.lease_s", f"{self.lease_s:g}", expected, "lower it")]

    def _notice_conflicts(self) -> list[Problem]:
        """Of two that say different things nobody knows which is right."""
        if self.preemption_notice is None or self.preemption_source is None:
            return []
        expected = f"null with failures.preemption_notice = {self.preemption_notice}"
        change = "leave one of them out"
        return [Problem("failures.preemption_source", self.preemption_source, expected, change)]

    def _isolation_conflicts(self) -> list[Problem]:
        """What is counted up to more than the run bears never comes to that."""
        if self.isolate_after is None and self.probe_after_s != _PROBE_AFTER_S:
            got, expected = f"{self.probe_after_s:g}", "nothing with failures.isolate_after = null"
            change = "leave it out, or say after how many failures a node is isolated"
            return [Problem("failures.probe_after_s", got, expected, change)]
        most = self.max_failures
        if self.isolate_after is None or most is None or self.isolate_after <= most:
            return []
        expected = f"at most failures.max_failures = {most}, which ends the run first"
        change = "lower it, raise failures.max_failures, or leave it out"
        return [Problem("failures.isolate_after", str(self.isolate_after), expected, change)]

    def _straggler_conflicts(
        self, communication: CommunicationConfig, parallel: ParallelConfig
    ) -> list[Problem]:
        """A rank can be given away between two steps where the others hold all of its state."""
        wrong = {
            f"parallel.mode = {parallel.mode}": parallel.is_sharded,
            "error feedback (communication.error_feedback)": communication.feeds_back,
        }
        change = "leave it out, or change that: what only that rank holds would be lost"
        return [
            Problem("failures.replace_stragglers", "true", f"false with {setting}", change)
            for setting, holds in wrong.items()
            if holds and self.replace_stragglers
        ]

    def _spot_check_conflicts(
        self, parallel: ParallelConfig, *, deterministic: bool
    ) -> list[Problem]:
        """Bits can be compared where they follow from the microbatch alone, on every rank."""
        problems: list[Problem] = []
        name, got = "failures.spot_check_every_steps", str(self.spot_check_every_steps)
        if self.spot_check_every_steps is None:
            return problems
        if parallel.is_sharded:
            expected = f"null with parallel.mode = {parallel.mode}, where ranks compute together"
            problems.append(Problem(name, got, expected, "leave it out, or set that to ddp"))
        if not deterministic:
            expected = "null with training.deterministic = false, where ranks differ without fault"
            problems.append(Problem(name, got, expected, "leave it out, or set that to true"))
        return problems
