"""What past runs and the trainers' reports tell of throughput, and of the service that a job will need."""
