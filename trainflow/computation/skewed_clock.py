"""Have a process's wall clock be wrong for as long as a chaos campaign says so.

The campaign writes by how much into a file that is named after the process, and the process looks
there. It is what TrainFlow itself reads as CLOCK_REALTIME that is wrong then: CLOCK_MONOTONIC goes
on, as it does where the clock of a machine is set.

Process: the campaign writes; coordinator, Keepers and workers in a campaign look.
Thread: one of their own, until the process ends.  Blocks: on the local disk.
"""

import threading
from pathlib import Path

from trainflow.clock import SYSTEM_CLOCK, SystemClock

_LOOK_EVERY_S = 0.1


def skew_clock(folder: Path, pid: int, by_s: float) -> None:
    """Say that a process's clock is wrong from now on.

    Args:
        folder: of the run, in the campaign's folder.
        pid: of the process.
        by_s: seconds that are added to what its clock shows; 0: it is right again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / f"clock-{pid}.new"
    written.write_text(repr(by_s))
    written.replace(_skew_of(folder, pid))


def follow_skew(folder: Path | None, pid: int, clock: SystemClock = SYSTEM_CLOCK) -> None:
    """Have this process's clock be as wrong as the campaign says.

    Args:
        folder: as `find_folder` tells it; None outside a campaign: nothing is done.
        pid: of this process.
        clock: what is read as its clock.
    """
    if folder is not None:
        look = (_skew_of(folder, pid), _followed_of(folder, pid), clock)
        threading.Thread(target=_look, args=look, name="skewed-clock", daemon=True).start()


def read_followed(folder: Path, pid: int) -> list[float]:
    """Return by how much a process has had its clock be wrong, one after the other; 0: right."""
    try:
        return [float(each) for each in _followed_of(folder, pid).read_text().split()]
    except FileNotFoundError:
        return []


def _look(path: Path, followed: Path, clock: SystemClock) -> None:
    while True:
        if path.exists():
            by_s = float(path.read_text())
            if by_s != clock.skew_s:
                with followed.open("a") as file:
                    file.write(f"{by_s!r}\n")
                clock.skew_s = by_s
        clock.sleep(_LOOK_EVERY_S)


def _skew_of(folder: Path, pid: int) -> Path:
    return folder / f"clock-{pid}"


def _followed_of(folder: Path, pid: int) -> Path:
    return folder / f"clock-{pid}.followed"
