"""Training sessions: the public faces `Context` and `Companion`, their startup, and the votes of the ranks."""
