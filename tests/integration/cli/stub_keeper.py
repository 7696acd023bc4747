"""The real keeper with stand-ins for Ray, service and agent, so that its loop is tested in a second."""

from __future__ import annotations

import sys
from pathlib import Path

from rubato.cli.keeper import commands, daemon
from rubato.cli.keeper.ports import find_free_ports
from rubato.home import Home

# Like Ray: listens, and has a child that leads its own session and an orphan that left the tree.
RAY = """
import os, socket, subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleeper, start_new_session=True)
if os.fork() == 0:
    subprocess.Popen(sleeper)
    os._exit(0)
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    time.sleep(600)
"""
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def plan_ray(layout: commands.Layout, environment: dict[str, str]) -> commands.RayPlan:
    (port,) = find_free_ports(1)
    (layout.ray_temp_dir / "session").mkdir(exist_ok=True)
    return commands.RayPlan("127.0.0.1", port, [sys.executable, "-c", RAY, str(port)], environment)


commands.find_checkout = lambda: Path.cwd()
commands.plan_ray = plan_ray
commands.service_command = lambda: SLEEP
commands.agent_command = lambda layout, address: [*SLEEP, address]
daemon.keep(Home(Path(sys.argv[1])), port=int(sys.argv[2]), slots=1)
