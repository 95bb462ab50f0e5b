"""Process groups: the rendezvous of the ranks, the collectives of the shim, the watchdog, DDP and FSDP."""
