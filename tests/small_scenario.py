"""A scenario of one node and two recorded jobs, as the text of its two files."""

SCENARIO = """
[[nodes]]
count = 1
gpus = 4
gpu_type = "v100"

[workload]
format = "sacct"
path = "jobs.txt"
"""
JOBS = """JobID|JobName|User|Account|Submit|ElapsedRaw|AllocTRES
1|a|ann|ml|2025-03-01T10:00:00|3600|gres/gpu=4
2|b|bob|ml|2025-03-01T10:10:00|60|gres/gpu=4
"""
