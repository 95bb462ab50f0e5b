"""Random faults of hosts, with real trainings of two users: `make docker-campaign SECONDS=300 SEED=1`."""

import os

import pytest

from tests.docker.host_campaign import HostCampaign

SECONDS = os.environ.get("CAMPAIGN_SECONDS")


@pytest.mark.skipif(SECONDS is None, reason="make docker-campaign runs it")
def test_a_campaign_of_faults_of_hosts(site, capsys):
    """No job fails that no fault struck, no sample is lost or trained twice, and nothing needs a hand."""
    campaign = HostCampaign(site, int(os.environ.get("CAMPAIGN_SEED", "1")), float(SECONDS))
    try:
        campaign.run()
    finally:
        with capsys.disabled():
            print(campaign.table())  # noqa: T201
    assert not campaign.problems, campaign.red()
