"""Restarts of slurmctld that a campaign finds noticed, or not, in the daemon's log."""

import pytest

from tests.campaign import notices

NOON = 1764072000.0  # 2025-11-25T12:00:00Z
NOTICE = "2025-11-25T12:00:{:09.6f}Z [warning  ] slurmctld_restarted            acting_in_seconds=6.0 boot_time={}"
START = "2025-11-25T12:00:{:09.6f}Z [info     ] action                         action='start 3: on n1' outcome=done"


@pytest.mark.parametrize(
    ("lines", "boots", "unnoticed"),
    [
        ([], [], 0),
        ([], [10.2], 1),
        ([NOTICE.format(12.0, NOON + 10)], [10.2], 0),
        ([NOTICE.format(12.0, NOON + 5)], [10.2], 1),
        ([NOTICE.format(15.0, NOON + 13)], [10.2, 13.7], 0),
        ([NOTICE.format(12.0, NOON + 10)], [10.2, 13.7], 1),
        ([START.format(11.5), NOTICE.format(12.0, NOON + 10)], [10.2], 1),
        ([NOTICE.format(12.0, NOON + 10), START.format(18.5)], [10.2], 0),
    ],
    ids=["none", "no notice", "noticed", "an older one", "two in one outage", "the second", "start first", "start"],
)
def test_a_restart_is_noticed_before_the_next_start(lines, boots, unnoticed):
    """By the boot time in the daemon's log; of two restarts in one outage only the last one's boot time can be read."""
    assert len(notices.unnoticed("\n".join(lines), [NOON + boot for boot in boots])) == unnoticed


def test_starts_in_the_first_seconds_are_found():
    """By the boot, not by the notice: a start may meet a controller that nobody has read since."""
    log = "\n".join([START.format(9.0), START.format(12.0), START.format(30.0)])
    assert [round(seconds, 3) for _, seconds in notices.early_starts(log, [NOON + 10.2])] == [1.8]
