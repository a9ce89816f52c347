"""The coordinator as a Keeper that uploads sees it, over Ray.

Process: keeper.  Thread: that of its snapshots.  Blocks: until answered, or given up.
"""

from typing import Any, cast

import ray
from ray.exceptions import GetTimeoutError, RayError

from trainflow.checkpointing.sharing import ShareReport
from trainflow.coordination import names
from trainflow.coordination.messages import ShareFailed, UploadAnswer
from trainflow.epochs import Version
from trainflow.errors import UnreachableError

_ANSWER_WITHIN_S = 10.0
_COMMIT_WITHIN_S = 60.0


class RemoteDesk:
    """See `trainflow.coordination.snapshot_service.UploadDesk`."""

    def __init__(self, job_id: str, node_id: str):
        self._name = names.coordinator_name(job_id)
        self._node_id = node_id

    def ask(self, version: Version, share_index: int) -> UploadAnswer:
        """Ask to upload a share of a version."""
        return cast(
            "UploadAnswer",
            self._call("ask_upload", self._node_id, version, share_index, within=_ANSWER_WITHIN_S),
        )

    def tell(self, report: ShareReport | ShareFailed, permit: str) -> bool | None:
        """Report what became of it."""
        return cast(
            "bool | None", self._call("take_share", report, permit, within=_COMMIT_WITHIN_S)
        )

    def look(self, version: Version, permit: str) -> bool | None:
        """Look what has become of a version whose share is reported."""
        return cast(
            "bool | None",
            self._call("look_after_share", version, permit, within=_ANSWER_WITHIN_S),
        )

    def _call(self, method: str, *arguments: object, within: float) -> Any:  # noqa: ANN401
        try:
            coordinator = ray.get_actor(self._name, names.NAMESPACE)
            return ray.get(getattr(coordinator, method).remote(*arguments), timeout=within)
        except (RayError, GetTimeoutError, ValueError) as error:  # ValueError: no such actor now
            raise UnreachableError(f"{self._name}: no answer to {method}: {error}") from error
