"""The routers: each parses, calls one use-case, and returns."""
