"""Who may bring what to the store at once."""

import asyncio
from pathlib import Path

from tests.unit.checkpointing.test_sharing import make_snapshot, upload
from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.test_checkpoint_control import control_for
from trainflow.checkpointing.store import CheckpointStore
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.upload_permits import Upload, UploadPermits
from trainflow.epochs import EpochId, Version

VERSION = Version(4, EpochId(1, 2))


def test_a_node_may_have_several_shares_of_a_version():
    permits = UploadPermits()
    first, second = (permits.grant(Upload("node", VERSION, index), 1) for index in (0, 1))
    assert permits.is_valid(first)
    assert permits.num_uploading(VERSION) == 2
    permits.grant(Upload("node", VERSION, 0), 1)
    assert not permits.is_valid(first), "asked for again: the Keeper has forgotten it"
    assert permits.is_valid(second)
    permits.void_of("node")
    assert not permits


def test_a_node_that_has_two_shares_may_bring_both(tmp_path: Path):
    async def act() -> list[bool | None]:
        store, record = CheckpointStore(str(tmp_path)), RunRecord(tmp_path / "record", FakeClock())
        control = control_for(store, record)
        reports = upload(make_snapshot(35, 7), store, 2)
        answers = [control.ask("node", each.version, 1, each.share.index) for each in reports]
        told = zip(reports, [str(answer.permit) for answer in answers], strict=True)
        return [await control.on_share(report, permit, world_size=2) for report, permit in told]

    assert asyncio.run(act()) == [None, True]
