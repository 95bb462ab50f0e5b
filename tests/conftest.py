"""What holds for all tests: signals that programs started by a test rely on."""

import signal


def pytest_configure():
    """Let programs that a test starts hear SIGINT and SIGHUP, also where the tests run in the background.

    A shell's background job ignores SIGINT, and ``nohup`` ignores SIGHUP; programs inherit an ignored signal, but not a
    handler. An empty handler keeps these signals from ending the tests themselves, as the shell asked.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
