"""How fast jobs train: what is true of a simulated job, and what is known of a real one."""
