"""A step of a job puts the bytes on the wire that the planner predicts, as the busiest worker's interface counts them.

Skipped, loudly, where the kernel or the user is not allowed to make namespaces. `test_bytes_sent` counts messages where
this counts packets.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_job import write

from rubato.testing import LocalJob
from tests.network import COMMAND, NAMESPACES, Network
from tests.planned import BATCH, CLASSES, FEWEST, INPUTS, MODEL, UPDATES, WAYS, is_as_planned, planned

pytestmark = pytest.mark.long

BODY = f"""
{MODEL}
def sent():
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "eth":
            return int(counts.split()[8])

def train(run):
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(1024, {INPUTS}), torch.randint({CLASSES}, (1024,)))
    run.prepare(model=model, optimizer=optimizer, dataset=data)
    counts = []
    for step in run.steps(steps=run.config["steps"]):
        counts.append(sent())
        for x, y in step:
            step.backward(torch.nn.functional.cross_entropy(model(x), y))
        optimizer.step()
    Path(run.config["home"], f"sent-{{os.getpid()}}.json").write_text(str(counts))

if __name__ == "__main__":
    rubato.main(train)
"""
WARM, ROUNDS = 2, 2
STEPS = WARM + ROUNDS * UPDATES + 1
CASES = [(way, workers) for way in WAYS for workers in (2, 3, 4) if workers >= FEWEST.get(way, 2)]


@pytest.mark.parametrize(("way", "workers"), CASES)
def test_a_step_sends_what_is_planned(tmp_path: Path, net: Network, way: str, workers: int) -> None:
    job = LocalJob(
        tmp_path,
        write(tmp_path, BODY),
        workers={"initial": workers, "min": workers, "max": workers},
        config={"steps": STEPS, "home": str(tmp_path)},
        batch=BATCH,
        checkpoint={"every_steps": 10 * STEPS},
        env={NAMESPACES: net.name},
        **WAYS[way],
    )
    job.run._command = COMMAND
    with job:
        job.result()
    assert len(job.formed()) == 1, job.told()
    counts = [json.loads(file.read_text()) for file in tmp_path.glob("sent-*.json")]
    assert len(counts) == workers
    begins = [WARM + number * UPDATES for number in range(ROUNDS)]
    sent = [sorted((one[begin + UPDATES] - one[begin]) / UPDATES for one in counts) for begin in begins]
    # On a busy machine a round may hold a packet that was sent twice, or words that are sent by the clock.
    assert any(is_as_planned(max(one), job.spec) for one in sent), (planned(job.spec), sent)
