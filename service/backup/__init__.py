"""Backups of a service, and what they are restored to.

`archive` the file: a tar whose last member names and hashes all others · `contents` what belongs into it · `sqlite`,
`postgres` a consistent copy of the database while the service runs, and how it is put back · `take` makes a backup ·
`restore` checks one and prepares it beside what is there · `swap` puts it in place, also after a kill half way ·
`attempts` why running controllers are not confused (ADR 32).
"""
