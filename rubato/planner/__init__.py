"""How long a step would take: for every strategy and number of workers, from a profile of the model and of the links.

Pure, and without torch: the service plans, too.
"""
