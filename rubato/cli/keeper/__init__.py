"""The keeper: the daemon of one RUBATO_HOME. It runs Ray, the service and the agent, and starts again what ends.

`process_table` who lives, by /proc · `ports` free ports and who holds one · `commands` how each process is started ·
`backoff` when to start again · `daemon` the loop · `control` what `rubato up` and `rubato down` do with it.
Never imports ray or torch.
"""
