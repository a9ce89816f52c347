"""The nodes of a cluster, as a node watch knows of them."""

from typing import Any, ClassVar


class FakeCluster:
    """A test puts its own nodes, as Ray tells of them, in the place of these."""

    cluster: ClassVar[list[dict[str, Any]]] = []
    is_closing = False

    @property
    def alive(self) -> dict[str, str]:
        return {each["NodeID"]: "10.0.0.1" for each in self.cluster if each["Alive"]}

    @property
    def labels(self) -> dict[str, dict[str, str]]:
        return {each["NodeID"]: each.get("Labels", {}) for each in self.cluster}
