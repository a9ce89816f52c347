"""Ask a machine's provider by a class of the job's own: ``failures.preemption_source``.

Process: driver, to refuse a bad one before anything starts; keeper.  Thread: there, the one that
asks.  Blocks: as long as the job's own code does.  Fails: as that does, which `NoticePoll` tells.
"""

import math
import sys
from collections.abc import Sequence
from typing import cast

from trainflow.clock import Clock
from trainflow.config.entrypoint import import_function
from trainflow.config.problems import Problem, show
from trainflow.coordination.preemption_notice import NoticePoll, NoticeSource, PreemptionNotice
from trainflow.errors import ConfigError

_SETTING = "failures.preemption_source"
_BUILD_AGAIN_AFTER_S = 30.0  # an import that fails takes as long as one that doesn't


def build_source(spec: str) -> NoticeSource:
    """Import a class, ``module:name``, and build one of it.

    Raises:
        ConfigError: it can't be imported or built, or what is built can't be asked.
    """
    build = import_function(spec, setting=_SETTING, kind="a class")
    try:
        source = build()
    except (Exception, SystemExit) as error:  # whatever the job's own code raises
        got = f"{spec}, which raised {type(error).__name__}: {error}"
        raise _refusal(got, "a class that can be built without arguments") from error
    if not callable(getattr(source, "poll_notice", None)):
        got = f"{spec}, which makes a {type(source).__name__} that has no such method"
        raise _refusal(got, "poll_notice(self) -> PreemptionNotice | None")
    return cast("NoticeSource", source)


class PluginSource:
    """Builds what a job names when it is asked for the first time, and asks it."""

    def __init__(self, spec: str, clock: Clock):
        self._spec = spec
        self._clock = clock
        self._source: NoticeSource | None = None
        self._refused: tuple[str, float] | None = None  # why, and when by CLOCK_MONOTONIC

    def poll_notice(self) -> PreemptionNotice | None:
        """Ask it.

        Raises:
            ConfigError: it can't be built on this node; that is tried again now and then.
            TypeError, ValueError: it says what is no notice. Or whatever it raises itself.
        """
        if self._source is None:
            self._source = self._build()
        return self._read(self._source.poll_notice())

    def _build(self) -> NoticeSource:
        now_s = self._clock.monotonic_s()
        if self._refused is not None and now_s < self._refused[1] + _BUILD_AGAIN_AFTER_S:
            raise ConfigError(self._refused[0])
        try:
            return build_source(self._spec)
        except ConfigError as error:
            self._refused = str(error), now_s
            raise

    def _read(self, said: object) -> PreemptionNotice | None:
        """Return it as the coordinator can read it, which lacks the job's modules."""
        if said is None:
            return None
        wrong = (
            f"from {self._spec}, expected a PreemptionNotice, with the seconds that are left, or "
            "None; change what it returns"
        )
        if not isinstance(said, PreemptionNotice):
            raise TypeError(f"got {show(said)} {wrong}")
        left_s = float(said.left_s)
        if not math.isfinite(left_s):
            raise ValueError(f"got {left_s} s {wrong}")
        return PreemptionNotice(left_s, None if said.trouble is None else str(said.trouble))


def watch_plugin(spec: str, import_paths: Sequence[str], clock: Clock) -> NoticePoll:
    """Begin to ask what a job names; it is imported and built in the thread that asks.

    Args:
        spec: ``module:name``.
        import_paths: where that module is found.
        clock: tells the time that is left.
    """
    sys.path[:0] = [path for path in import_paths if path not in sys.path]
    poll = NoticePoll(PluginSource(spec, clock), clock)
    poll.start()
    return poll


def _refusal(got: str, expected: str) -> ConfigError:
    change = f"change {_SETTING} or what it names"
    return ConfigError(str(Problem(_SETTING, got, expected, change)))
