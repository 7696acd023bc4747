"""Kills a process that saves checkpoints to S3 at its k-th request, for every k until one gets through.

    s3_crashes.py s3://bucket/prefix before|after

`before`: the request is never sent; `after`: it was answered. Told as JSON, a line for each k: what the process had
told of, what is found afterwards, and what another process then saves in the same place. Processes are forks of this
one, which has the imports and nothing else: no thread, no client.
"""

import json
import os
import signal
import sys
import traceback

import commits
import s3fs

from rubato.checkpoint.manifest import MANIFEST_NAME, find_latest
from rubato.checkpoint.storage import open_folder

STEPS = (10, 20)


def forked(work, *arguments):
    """Run it in a process of its own; its standard output, and how it ended."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.dup2(writer, 1)
        code = 1
        try:
            work(*arguments)
            sys.stdout.flush()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as output:
        lines = output.read().splitlines()
    return lines, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def save(root, k=None, when=""):
    """Two checkpoints, of which one is kept; killed at the k-th request."""
    ask, count = s3fs.S3FileSystem._call_s3, 0

    async def counted(self, *arguments, **options):
        nonlocal count
        count += 1
        mine = count
        if mine == k and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return await ask(self, *arguments, **options)
        finally:  # a refusal is an answer too
            if mine == k:
                os.kill(os.getpid(), signal.SIGKILL)

    s3fs.S3FileSystem._call_s3 = counted
    commits.do_in_order()
    commits.Job(root).run(STEPS)


def look(root):
    """The newest checkpoint that holds, whether its bytes are right, and what is called whole and is not."""
    corrupt = []

    def pass_over(folder, cause):
        if folder.exists(MANIFEST_NAME):
            corrupt.append(f"{folder.name}: {cause}")

    folder = open_folder(root)
    found = find_latest(folder, pass_over)
    return {
        "step": found[1].step if found is not None else 0,
        "is_right": found is None or commits.is_right(*found),
        "corrupt": corrupt,
        "folders": sorted(folder.folders()),
    }


def go_on(root):
    """What a process finds that comes after a crash, and after it has saved in the same place."""
    before = look(root)
    save(root)
    print(json.dumps([before, look(root)]))


def steps_of(lines, word):
    return [int(line.split()[1]) for line in lines if line.startswith(f"{word} ")]


def main():
    prefix, when = sys.argv[1:]
    k, code = 0, None
    while code != 0:
        k += 1
        root = f"{prefix}/{when}-{k}"
        lines, code = forked(save, root, k, when)
        (*again, looks), _ = forked(go_on, root)
        found, final = json.loads(looks)
        told = {"k": k, "code": code, "committed": steps_of(lines, "committed"), "found": found}
        then = {"went_on_from": steps_of(again, "found"), "again": steps_of(again, "committed"), "final": final}
        print(json.dumps({**told, **then}), flush=True)


if __name__ == "__main__":
    main()
