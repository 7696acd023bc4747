"""The training engine: canonical reduction, generations, recovery by survivors, live join and leave.

Pure: `tree` (canonical reduction tree), `header` (what rides along, and the decision everybody takes from it),
`coordinator` (the job protocol). Effects: `comm` (collectives), `exchange` (one reduction), `membership` (entering a
generation, recovery), `session` (what a training process does between two lines of user code).
"""
