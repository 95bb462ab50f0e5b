"""What the daemon's log says of restarts of slurmctld: noticed or not, and the jobs started too early. Pure."""

import math
import re
from datetime import datetime

from metasched.configuration.config import SlurmOptions

# Time and boot time of each restart that the daemon noticed, after which it settles
NOTICE = re.compile(r"^(\S+) \[.*? slurmctld_restarted  *.*?boot_time=([0-9.]+)", re.MULTILINE)
START = re.compile(r"^(\S+) \[.*? action  *action='start ", re.MULTILINE)


def early_starts(log, boots):
    """Starts with their seconds after the boot of slurmctld, before it had settled; boots are unix seconds."""
    settle = SlurmOptions().settle_seconds
    return [
        (text, _unix(text) - boot) for text in START.findall(log) for boot in boots if 0 < _unix(text) - boot < settle
    ]


def unnoticed(log, boots):
    """The boots of slurmctld, unix seconds, that the daemon has not noticed before it started a job.

    A daemon that was dead notices the restart when it starts. Of several restarts between two polls, the last one's
    boot time is what there is to read; one notice serves them all.
    """
    notices = [(_unix(at), float(boot_time)) for at, boot_time in NOTICE.findall(log)]
    starts = [_unix(at) for at in START.findall(log)]
    found = []
    for boot in boots:
        noticed = min((at for at, boot_time in notices if boot_time >= int(boot)), default=math.inf)
        if noticed == math.inf or any(boot < at < noticed for at in starts):
            found.append(boot)
    return found


def _unix(text):
    return datetime.fromisoformat(text).timestamp()
