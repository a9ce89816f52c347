"""When that was which a rank tells of, by the coordinator's clock. Pure."""

from typing import TypeVar

Moment = TypeVar("Moment", int, float)


def place_moment(told: Moment, since: Moment, heard: Moment) -> Moment:
    """Return when something was: as a rank says, if its clock can be right, else when heard of.

    Args:
        told: by CLOCK_REALTIME of the rank's machine.
        since: before which it can't have been; this and what follows by the coordinator's clock.
        heard: when the coordinator heard of it.
    """
    return told if since <= told <= heard else heard
