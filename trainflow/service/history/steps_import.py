"""Put committed steps of a run's record into the database, as the history that counts.

A run that went back does steps again: what it had beyond is void. It says so by an event; and where
that is missing, since the disk was full, by a step of a later epoch that isn't the next one. The
same lines and events give the same points, in whichever pieces and order they come.

Process: any that keeps the history.  Blocks: on the database.
"""

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, delete, insert, select

from trainflow.service.history import schema
from trainflow.service.history.downsampling import Merge, Point, merge_by_grid, plan_merges
from trainflow.service.history.draft import Draft
from trainflow.service.history.events_import import read_cuts
from trainflow.service.history.point_rows import to_point, to_row
from trainflow.service.history.record_files import Slice
from trainflow.service.history.record_lines import Line, parse_step

_T = schema.points.c
_NO_EPOCH = -1


def forget_steps(connection: Connection, draft: Draft) -> None:
    """Have a job without any step."""
    connection.execute(delete(schema.points).where(_T.job_id == draft.job_id))
    draft.last_step = draft.farthest_step = 0


class StepsImport:
    """One pass over what is new of a run's steps.

    Attributes:
        must_reread: points of several steps are void in part, or some were left out that count; all
            that is known was forgotten, and the file is to be read from its beginning.
        num_unreadable: lines that say nothing.
    """

    def __init__(self, connection: Connection, draft: Draft):
        self._connection = connection
        self._draft = draft
        self._fresh: list[Point] = []
        self._newest_epoch = _NO_EPOCH
        self.must_reread = False
        self.num_unreadable = 0
        self._find_newest()

    def take(self, read: Slice | None, cuts: Iterable[tuple[int, int]]) -> None:
        """Take where the run went back, as newly heard of, and then the steps that were read."""
        if read is not None and read.begins_anew:
            forget_steps(self._connection, self._draft)
            self._draft.cuts = read_cuts(self._connection, self._draft.job_id)  # of events alone
            self._find_newest()
        for cut in cuts:
            self._go_back(*cut)
        if read is not None:
            self.num_unreadable += read.num_unreadable
            for line in read.objects:
                self._take(line)
        self._flush()
        if read is None or not read.has_more:
            self._drop_unfounded_cuts()
        if self.must_reread:
            forget_steps(self._connection, self._draft)
            return
        for merge in plan_merges(self._draft.farthest_step, self._draft.last_step):
            self._merge(merge)

    def _take(self, line: Line) -> None:
        point = parse_step(line)
        if point is None:
            self.num_unreadable += 1
            return
        draft, step, epoch = self._draft, point.last_step, point.last_epoch
        draft.farthest_step = max(draft.farthest_step, step)
        draft.note_time(point.committed_at_s)
        if any(epoch < later and step > base for later, base in draft.cuts):
            return
        if step <= draft.last_step and epoch > self._newest_epoch:
            draft.cuts.append((epoch, step - 1))
            self._go_back(epoch, step - 1)
        if step > draft.last_step:
            self._fresh.append(point)
            draft.last_step, self._newest_epoch = step, epoch

    def _go_back(self, epoch: int, step: int) -> None:
        """Forget what earlier epochs have beyond a step."""
        self._flush()
        of_job = _T.job_id == self._draft.job_id
        is_void = (_T.first_step > step) & (_T.last_epoch < epoch)
        self._connection.execute(delete(schema.points).where(of_job & is_void))
        is_partly_void = (_T.last_step > step) & (_T.first_epoch < epoch)
        left = select(_T.last_step).where(of_job & is_partly_void).limit(1)
        if self._connection.execute(left).first() is not None:
            self.must_reread = True
        self._find_newest()

    def _drop_unfounded_cuts(self) -> None:
        """Where a line had told of going back that has been torn since, the run has not gone back.

        All is read: each such line that is there has given a point, or another cut has taken it.
        """
        draft = self._draft
        if not draft.cuts or self.must_reread:
            return
        of_events = read_cuts(self._connection, draft.job_id)
        for epoch, step in [cut for cut in draft.cuts if cut not in of_events]:
            if any(later > epoch and base <= step for later, base in draft.cuts):
                continue
            is_it = (_T.first_step <= step + 1) & (_T.last_step > step) & (_T.last_epoch >= epoch)
            query = select(_T.last_step).where((_T.job_id == draft.job_id) & is_it).limit(1)
            if self._connection.execute(query).first() is None:
                draft.cuts.remove((epoch, step))
                self.must_reread = True

    def _find_newest(self) -> None:
        query = select(_T.last_step, _T.last_epoch).where(_T.job_id == self._draft.job_id)
        row = self._connection.execute(query.order_by(_T.last_step.desc()).limit(1)).first()
        self._draft.last_step = 0 if row is None else row.last_step
        self._newest_epoch = _NO_EPOCH if row is None else row.last_epoch

    def _flush(self) -> None:
        self._insert(self._fresh)
        self._fresh.clear()

    def _insert(self, points: Sequence[Point]) -> None:
        rows = [to_row(self._draft.job_id, point) for point in points]
        if rows:
            self._connection.execute(insert(schema.points), rows)

    def _merge(self, merge: Merge) -> None:
        due = (_T.job_id == self._draft.job_id) & (_T.width == merge.narrow)
        due &= _T.last_step <= merge.up_to_step
        rows = self._connection.execute(select(schema.points).where(due).order_by(_T.last_step))
        narrow = [to_point(row) for row in rows]
        if narrow:
            self._connection.execute(delete(schema.points).where(due))
            self._insert(merge_by_grid(narrow, merge.wide))
