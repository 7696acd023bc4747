"""The job service: the truth about jobs, in a database. Imports neither ray nor torch."""
