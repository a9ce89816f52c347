"""Count committed steps that are done again, from a run's events. Pure."""

from collections.abc import Mapping
from typing import Any

from trainflow.epochs import EpochId


class LostSteps:
    """Each step counts once, whichever event tells of it, and however many do.

    ``resumed`` tells of those that going back to a kept state costs; so does ``recovered``, of the
    last epoch that the recovery needed. What is lost without going back only ``recovered`` tells.
    What a run goes back for its loss is asked for, and is not lost, also if somebody dies then.
    """

    def __init__(self) -> None:
        self._counted: dict[str, int] = {}  # by the epoch that does them again, asked for or not
        self._rewound_to: int | None = None  # until it is told that training begins there

    def take(self, event: Mapping[str, Any]) -> int:
        """Take a line of ``events.jsonl``; returns how many more steps are lost."""
        data = event["data"]
        match event["kind"]:
            case "rewound":
                self._rewound_to = data["to_step"]
            case "resumed" if "steps_lost" in data:  # earlier releases didn't say
                rewound_to, self._rewound_to = self._rewound_to, None
                lost = self._count(str(EpochId(*data["epoch"])), data["steps_lost"])
                return lost if data["step"] != rewound_to else 0
            case "recovered":
                return self._count(data["epoch"], data["steps_lost"])
            case _:
                pass
        return 0

    def _count(self, epoch: str, steps_lost: int) -> int:
        before = self._counted.get(epoch, 0)
        self._counted[epoch] = max(before, steps_lost)
        return self._counted[epoch] - before
