"""`backend: ray_train`: a job whose program is a train function of Ray Train, run as it is (ADR 40)."""
