"""Signals as a wish."""

import signal
from collections.abc import Iterator

import pytest

from trainflow.cli.stop_signals import STOP_SIGNALS, StopSignals, ending_in_order


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_first_signal_is_noted(number: signal.Signals):
    with StopSignals() as signals:
        signals.second_interrupts = True
        signal.raise_signal(number)
    assert signals.received == 1


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_second_signal_interrupts_once_that_is_safe(number: signal.Signals):
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signals.second_interrupts = True
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_a_third_one_does_not_disturb_the_cleaning_up():
    with StopSignals() as signals:
        signals.second_interrupts = True
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert signals.received == 3


def test_a_library_that_takes_the_signals_is_overruled():
    with StopSignals() as signals:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signals.install()
        signal.raise_signal(signal.SIGTERM)
    assert signals.received == 1


@pytest.fixture
def heeded_hangup() -> Iterator[None]:
    """Have a hangup end this process as ever, even where it was started under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_the_handlers_from_before_come_back():
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with StopSignals() as signals:
        signals.install()
        assert [signal.getsignal(number) for number in STOP_SIGNALS] != before
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_end_is_waited_for_by_what_cleans_up(
    number: signal.Signals, code: int, heeded_hangup: None
):
    before = signal.getsignal(number)
    cleaned: list[bool] = []

    def work() -> None:
        with ending_in_order():
            try:
                signal.raise_signal(number)
            finally:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGHUP)
                cleaned.append(True)

    with pytest.raises(SystemExit) as end:
        work()
    assert end.value.code == code
    assert cleaned
    assert signal.getsignal(number) == before


def test_a_hangup_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_in_order():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interrupt_is_heeded_once_where_it_is_taken():
    before = signal.getsignal(signal.SIGINT)
    cleaned: list[bool] = []

    def work() -> None:
        with ending_in_order(takes_interrupts=True) as ending:
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.raise_signal(number)
                cleaned.append(ending.by is signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert cleaned == [True]
    assert signal.getsignal(signal.SIGINT) == before


def test_nothing_is_heeded_once_all_that_is_left_is_to_clean_up():
    with ending_in_order(takes_interrupts=True) as ending:
        ending.heed_no_more()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)
    assert ending.by is None


def test_elsewhere_an_interrupt_stays_what_it_is():
    before = signal.getsignal(signal.SIGINT)
    with ending_in_order() as ending:
        ending.heed_no_more()
        assert signal.getsignal(signal.SIGINT) == before
