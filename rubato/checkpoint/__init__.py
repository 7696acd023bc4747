"""What is saved of a job, and how it is found again.

`tree` state to JSON and tensors · `layout` their types, shapes and bytes · `digest` hashes of it · `stripes` the
tensors as files that workers write side by side · `manifest` what makes a checkpoint whole, and which is the newest ·
`retention` which are kept · `storage` where they lie, and `files` how a local one is written so that a crash leaves all
or nothing · `export` a model out of one. Nothing is ever unpickled. `manifest`, `retention`, `storage` need no torch.
"""
