"""Names of the daemon's files in the state and the shared directory, for the daemon and the command line alike."""

DATABASE = "metasched.db"
"""The store, in the state directory; its copy for failover has the same name."""
LOCK = "daemon.lock"
"""The lock of the daemon that schedules, in the shared directory."""
COPIES = "standby"
"""The directory of the store's copies, in the shared directory."""
