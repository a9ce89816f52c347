"""The flags with which docker-compose.yml starts a server, so that tests start it with the same."""

from collections.abc import Mapping
from pathlib import Path

import yaml

_FILE = Path(__file__).parents[2] / "docker-compose.yml"


def flags_of(service: str, changes: Mapping[str, str]) -> list[str]:
    """Return the flags of a service.

    Args:
        service: its name there.
        changes: values of flags that are others here, as of files; each must be there.
    """
    words = yaml.safe_load(_FILE.read_text())["services"][service]["command"]
    flags: dict[str, str] = dict(word.split("=", 1) for word in words)
    assert changes.keys() <= flags.keys(), f"{service} has no {changes.keys() - flags.keys()}"
    return [f"{name}={value}" for name, value in {**flags, **changes}.items()]
