"""Training processes and the loop that leads them: what `rubato run` and the cluster side share.

The child (`rubato.launch.child`) loads torch; everything else here needs the standard library only, so that a
supervisor stays small and quick to start.
"""
