"""What runs on the Ray cluster: the agent (a Ray driver), one controller a job, one supervisor a worker.

`agent` makes the cluster do what the service says · `controller` leads one job · `supervisor` holds one training
process · `fleet` workers as actors · `reporter` facts on their way to the service · `service_link` HTTP · `names`.
Never imports torch.
"""
