"""Shadow policies: they decide on the daemon's snapshots beside the live policy, and nothing of it is carried out."""
