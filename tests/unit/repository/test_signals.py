import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
CHILD = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
TEST = f"""
import subprocess, sys

def test_child():
    assert subprocess.run([sys.executable, "-c", {CHILD!r}], capture_output=True, text=True).stdout == "True\\n"
"""


def test_programs_of_tests_in_the_background_hear_sigint(tmp_path):
    """Where a shell starts pytest with SIGINT ignored, programs that a test starts still have the default handler."""
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_child.py").write_text(TEST)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.returncode == 0, done.stdout
