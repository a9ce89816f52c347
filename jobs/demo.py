"""Train a language model twice: undisturbed, and while a worker, a node and the coordinator die.

    make demo                      # or: python jobs/demo.py

Three simulated nodes (separate raylets) on this machine; 3 members and 2 spares. Prints what each
death cost, whether the two models are the same to the bit, and some lines that the model wrote;
the same as JSON in out/demo/summary.json. Ended by a signal, it takes its nodes with it.

Process: driver.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from trainflow.cli.stop_signals import STOP_SIGNALS
from trainflow.config import load_job
from trainflow.config.job import JobConfig
from trainflow.coordination import names
from trainflow.coordination.driver import Run, connect, disconnect, start_run
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.data.pack import pack_corpus
from trainflow.errors import UnreachableError

OUT = Path("out")
DEMO = OUT / "demo"
JOB = Path(__file__).parent / "pretrain_lm.yaml"
NUM_NODES = 3
POLL_S = 0.1
TIMEOUT_S = 300.0
PROMPT = "    def __init__("
TEXT_SEED = 0
TEXT_TOKENS = 60
TEMPERATURE = 0.7
TOP_K = 50
console = Console()


@dataclass
class Fault:
    """One death, and what it cost.

    Attributes:
        what: died.
        step: that was committed last when it did.
        noticed_s: from the kill until the coordinator knew (for its own death: until it was back).
        recovered_s: from the kill until the next committed step of every rank.
        recomputed_s: work thrown away: from the last commit before the kill until the kill.
        steps_lost: committed steps that were executed again.
        pids_kept: every surviving member kept its process.
    """

    what: str
    step: int
    noticed_s: float
    recovered_s: float
    recomputed_s: float
    steps_lost: int
    pids_kept: bool


class Disturbed:
    """A run, watched, in which things are killed."""

    def __init__(self, run: Run, cluster: LocalCluster):
        self.run = run
        self.cluster = cluster
        self.faults: list[Fault] = []

    def kill_worker(self) -> None:
        """Kill the process of rank 1."""
        victim = next(w for w in self._members() if w["rank"] == 1)
        self._kill("worker", {1}, lambda: os.kill(victim["pid"], signal.SIGKILL))

    def kill_node(self) -> None:
        """Kill the whole node that rank 2 is on: raylet, workers, Keeper."""
        victim = next(w for w in self._members() if w["rank"] == 2)  # noqa: PLR2004
        host = victim["host"]
        lost = {w["rank"] for w in self._members() if w["host"] == host}
        node = next(node for node in self.cluster.nodes if node.host == host)
        self._kill("node", lost, node.kill)
        # A real node's memory would be gone with it.
        shutil.rmtree(names.stamp_directory(self.run.job_id, victim["node_id"]), ignore_errors=True)

    def kill_coordinator(self) -> None:
        """Kill the coordinator's process; training goes on without it."""
        members = self._pids()
        pid, before = self.run.coordinator_pid(), self.run.status()
        killed_at_s = time.time()
        os.kill(pid, signal.SIGKILL)
        await_status(
            self.run,
            lambda s: s["incarnation"] > before["incarnation"] and s["state"] == "running",
        )
        back_s = time.time() - killed_at_s
        status = await_status(self.run, lambda s: s["step"] > before["step"])
        step = next(s for s in all_steps(self.run) if s["committed_at_s"] > killed_at_s)
        self.faults.append(
            Fault(
                what="coordinator",
                step=before["step"],
                noticed_s=back_s,
                recovered_s=step["committed_at_s"] - killed_at_s,
                recomputed_s=0.0,
                steps_lost=max(0, before["step"] - status["step"]),
                pids_kept=self._pids() == members,
            )
        )

    def wait_ready(self, step: int) -> None:
        """Wait for a step, and for both spares."""
        await_status(
            self.run,
            lambda s: s["step"] >= step and s["state"] == "running" and s["spares"] >= 2,  # noqa: PLR2004
        )

    def _kill(self, what: str, ranks: set[int], kill: Callable[[], None]) -> None:
        before = self._pids()
        known = sum(e["kind"] == "recovered" for e in self.run.status()["events"])
        killed_at_s = time.time()
        kill()
        status = await_status(
            self.run, lambda s: sum(e["kind"] == "recovered" for e in s["events"]) > known
        )
        data = [e["data"] for e in status["events"] if e["kind"] == "recovered"][-1]
        after = self._pids()
        committed = [
            s["committed_at_s"] for s in status["steps"] if s["committed_at_s"] <= killed_at_s
        ]
        self.faults.append(
            Fault(
                what=what,
                step=data["base_step"],
                noticed_s=data["noticed_at_s"] - killed_at_s,
                recovered_s=data["committed_at_s"] - killed_at_s,
                recomputed_s=killed_at_s - committed[-1],
                steps_lost=data["steps_lost"],
                pids_kept=all(
                    after[rank] == pid for rank, pid in before.items() if rank not in ranks
                ),
            )
        )

    def _members(self) -> list[dict[str, Any]]:
        return [worker for worker in self.run.workers() if worker["rank"] is not None]

    def _pids(self) -> dict[int, int]:
        return {worker["rank"]: worker["pid"] for worker in self._members()}


def await_status(run: Run, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Poll a run until its status satisfies ``reached``; fails if the run does."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            status = run.status()
        except UnreachableError:
            continue  # the coordinator is restarting
        if reached(status):
            return status
        if status["state"] == "failed":
            raise SystemExit(f"the run failed: {status['ending']['reason']}")
        time.sleep(POLL_S)  # noqa: TID251  a person's clock is the real one
    raise SystemExit(f"the run did not get on within {TIMEOUT_S:.0f} s: see {OUT}")


def all_steps(run: Run) -> list[dict[str, Any]]:
    """Return every committed step, in order."""
    return run.status()["steps"]


def run_to_end(job: JobConfig, disturb: Callable[[Run], None]) -> list[dict[str, Any]]:
    """Run a job, disturb it, and return its steps."""
    run = start_run(job)
    disturb(run)
    status = await_status(run, lambda s: s["state"] in {"succeeded", "failed", "stopped"})
    run.retire()
    if status["state"] != "succeeded":
        raise SystemExit(f"the run {status['state']}: {status['ending']['reason']}")
    return status["steps"]


def load_variant(name: str) -> JobConfig:
    """Read the job, with an export folder of its own."""
    return load_job(JOB, [f"args.export_dir={DEMO / name}", f"name=demo-{name}"])


def disturb(run: Run, cluster: LocalCluster) -> list[Fault]:
    """Kill a worker, a node and the coordinator, a quarter of the run apart."""
    disturbed = Disturbed(run, cluster)
    kills = (disturbed.kill_worker, disturbed.kill_node, disturbed.kill_coordinator)
    quarter = run.status()["max_steps"] // 4
    for number, kill in enumerate(kills, start=1):
        if kill != disturbed.kill_coordinator:
            disturbed.wait_ready(number * quarter - quarter // 2)
        else:
            await_status(run, lambda s: s["state"] == "running" and s["step"] >= 3 * quarter)
        kill()
        fault = disturbed.faults[-1]
        console.print(f"killed a {fault.what} after step {fault.step}: {fault.recovered_s:.2f} s")
    return disturbed.faults


def generate(model_dir: Path) -> str:
    """Let the exported model write some lines; the same weights write the same ones."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir)
    inputs = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    torch.manual_seed(TEXT_SEED)
    tokens = model.generate(
        **inputs, max_new_tokens=TEXT_TOKENS, do_sample=True, temperature=TEMPERATURE, top_k=TOP_K
    )
    text = tokenizer.decode(tokens[0], skip_special_tokens=True)
    whole_lines, _, _ = text.rpartition("\n")
    return whole_lines.rstrip() or text


def same_weights(first: Path, second: Path) -> bool:
    """Compare two exported models byte for byte."""
    name = "model.safetensors"
    return (first / name).read_bytes() == (second / name).read_bytes()


def show(faults: list[Fault], summary: dict[str, Any]) -> None:
    """Print what happened."""
    table = Table(title="What died, and what it cost")
    for heading in ("died", "after step", "noticed s", "next step of every rank s", "recomputed s"):
        table.add_column(heading, justify="right")
    table.add_column("steps lost", justify="right")
    table.add_column("survivors' pids kept")
    for fault in faults:
        figures = [f"{x:.2f}" for x in (fault.noticed_s, fault.recovered_s, fault.recomputed_s)]
        kept = "yes" if fault.pids_kept else "NO"
        table.add_row(fault.what, str(fault.step), *figures, str(fault.steps_lost), kept)
    console.print(table)
    console.print(f"a step takes {summary['step_s']:.2f} s")
    console.print(f"weights identical to the undisturbed run's: {summary['weights_identical']}")
    console.print(f"loss curve identical: {summary['losses_identical']}")
    console.print(f"after {summary['num_steps']} steps the model writes Python like this:")
    console.print(summary["text"], markup=False, highlight=False)


def leave_on_signals() -> None:
    """Have the first SIGINT or SIGTERM unwind what runs, and later ones wait for that.

    Takes them from Ray too, whose own handler of SIGTERM aborts this process at once.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in STOP_SIGNALS:
        signal.signal(number, leave)


def train_twice() -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[Fault]]:
    """Run the job undisturbed, then disturbed; return the steps of both, and what died."""
    faults: list[Fault] = []
    leave_on_signals()
    with (
        LocalCluster.start(head_cpus=0, num_nodes=NUM_NODES, dies_with_starter=True) as cluster,
        ExitStack() as exits,
    ):
        exits.callback(disconnect)
        connect(cluster.address)
        leave_on_signals()
        console.print(f"three nodes are up at {cluster.address}; first run: undisturbed")
        undisturbed = run_to_end(load_variant("undisturbed"), lambda _: None)
        console.print("second run: a worker, a node and the coordinator die")
        disturbed = run_to_end(
            load_variant("disturbed"), lambda run: faults.extend(disturb(run, cluster))
        )
    return undisturbed, disturbed, faults


def main() -> None:
    """Run the demo."""
    DEMO.mkdir(parents=True, exist_ok=True)
    if not (OUT / "corpus" / "corpus.json").exists():
        console.print("packing the Python standard library's source into out/corpus")
        pack_corpus("stdlib", str(OUT / "corpus"))
    os.environ["TRAINFLOW_HOME"] = str(DEMO.absolute() / "home")
    undisturbed, disturbed, faults = train_twice()
    summary: dict[str, Any] = {
        "faults": [asdict(fault) for fault in faults],
        "num_steps": len(disturbed),
        "step_s": median(s["compute_s"] + s["wait_s"] for s in undisturbed),
        "weights_identical": same_weights(DEMO / "undisturbed", DEMO / "disturbed"),
        "losses_identical": [s["loss"] for s in undisturbed] == [s["loss"] for s in disturbed],
        "text": generate(DEMO / "disturbed"),
    }
    (DEMO / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    show(faults, summary)
    if not (summary["weights_identical"] and summary["losses_identical"]):
        raise SystemExit("the disturbed run differs from the undisturbed one")


if __name__ == "__main__":
    main()
