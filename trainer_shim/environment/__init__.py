"""The process's surroundings: the job's METASCHED_* variables, the world of ranks, torchrun, and the log output."""
