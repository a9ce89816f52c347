"""Make all checks at once, none for longer than a bound.

Process: driver.  Thread: main, and one a check, which is left behind if it hangs.
"""

import threading
from collections.abc import Callable, Mapping

from trainflow.cli.doctor.findings import Finding, Row, error
from trainflow.clock import Clock

Check = Callable[[], Finding]


def examine(checks: Mapping[str, Check], within_s: float, clock: Clock) -> list[Row]:
    """Return what checks find, in their order; whatever happens, each has a finding.

    Args:
        checks: by name.
        within_s: seconds for all of them together.
        clock: for the deadline.
    """
    found: dict[str, Finding] = {}

    def look(name: str, check: Check) -> None:
        try:
            found[name] = check()
        except Exception as failure:  # noqa: BLE001  one that fails must not hide the others
            text = f"it could not be looked at ({type(failure).__name__}: {failure})"
            found[name] = error(text, "mend what that names")

    threads = [
        threading.Thread(target=look, args=each, name=f"doctor-{each[0]}", daemon=True)
        for each in checks.items()
    ]
    for thread in threads:
        thread.start()
    deadline_s = clock.monotonic_s() + within_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - clock.monotonic_s()))
    late = error(
        f"no answer within {within_s:.0f} s", "see what it waits for: a store, a disk, Ray"
    )
    return [Row(name, found.get(name, late)) for name in checks]
