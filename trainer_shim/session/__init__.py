"""Training sessions: the public interfaces `Context` and `Companion`, their startup, and the votes of the ranks."""
