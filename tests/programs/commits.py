"""Three checkpoints, each committed and the older ones cleared away: every write of them is a place to crash at.

commits.py FOLDER [KEPT]
"""

import sys

from rubato.checkpoint.manifest import JobTerms, commit_manifest, key_of
from rubato.checkpoint.retention import Retention, prune, sweep
from rubato.checkpoint.storage import open_folder
from rubato.errors import CheckpointError

TERMS = JobTerms("job_1", num_microbatches=4, radices=(2, 2), seed=0, global_batch=8)
STEPS = (10, 20, 30)


def content_of(step):
    """Of its files, in order."""
    return [f"{name} of step {step}".encode() * 100 for name in ("state", "stripe 0", "stripe 1")]


def commit(root, step, kept=1):
    folder = root / f"1-{step}"
    records = [folder.write(f"part-{index}", [data[:7], data[7:]]) for index, data in enumerate(content_of(step))]
    files = [{"name": one.name, "bytes": one.bytes, "sha256": one.sha256} for one in records]
    commit_manifest(folder, TERMS.manifest(folder.name, step=step, generation=1, files=files, terms={}))
    print(f"committed {step}", flush=True)
    sweep(root, before=key_of(folder.name))
    prune(root, Retention(kept))


def main():
    root = open_folder(sys.argv[1])
    kept = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    print("begin", flush=True)
    for step in STEPS:
        try:
            commit(root, step, kept)
        except (CheckpointError, OSError) as error:
            print(f"failed {step}: {error}", flush=True)


if __name__ == "__main__":
    main()
