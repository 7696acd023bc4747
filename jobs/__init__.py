"""What runs on the Ray cluster: agent, controller, worker supervisor. Imports ray and rubato."""
