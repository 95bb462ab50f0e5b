"""The learning step of a poll: speeds from trainers' reports, and the service of a job from earlier jobs like it."""
