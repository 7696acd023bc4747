"""A controller beside the one that the agent made, as a cluster has it whose other half was only cut off.

Arguments: job, address of the service, address of Ray, the attempt that it takes for gone. Its ticket comes by stdin.
"""

from __future__ import annotations

import os
import sys

import ray

from jobs.controller import Leader, own_process
from jobs.names import NAMESPACE
from jobs.service_link import ServiceLink


def main(job_id: str, url: str, ray_address: str, gone: int) -> None:
    """Lead the job until it ends."""
    ticket = sys.stdin.readline().strip()
    ray.init(address=ray_address, namespace=NAMESPACE, log_to_driver=False)
    with ServiceLink(url, ticket) as link:
        acquired = link.acquire(job_id, own_process(), gone)
    with ServiceLink(url, acquired.token) as link, ServiceLink(url, acquired.token) as poll_link:
        Leader(job_id, acquired, url, link, poll_link).lead()


if __name__ == "__main__":
    main(*sys.argv[1:4], gone=int(sys.argv[4]))
    sys.stderr.flush()
    os._exit(0)  # a Ray driver's atexit waits for the cluster
