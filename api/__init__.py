"""The HTTP face of the service: /api/v1 for people, /cluster/v1 for agents and controllers, and the page."""
