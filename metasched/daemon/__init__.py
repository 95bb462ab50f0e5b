"""The scheduler's process: poll, controller, actuator, publisher, failover."""
