"""Programs that stand in for real ones in a test."""


def write_program(path, text):
    """Write it where it may be the first of its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
