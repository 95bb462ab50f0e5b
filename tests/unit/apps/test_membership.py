import pytest

from metasched.apps.membership import app_name, app_uid, members_by_app, settings_of
from metasched.apps.tuners.tuner import TunerError
from tests.builders import job
from tests.unit.apps.searches import settings


@pytest.mark.parametrize(
    ("uid", "user", "name", "app"),
    [
        ("64a0", "ann", None, None),
        ("64a0_7", "ann", None, "array:64a0"),
        ("64a0", "ann", "lr", "app:ann/lr"),
        ("64a0_7", "ann", "lr", "app:ann/lr"),
        ("64a1", "bob", "lr", "app:bob/lr"),
    ],
)
def test_an_array_or_a_name_makes_an_app(uid, user, name, app):
    """The tag comes before the array, and apps of two users are two."""
    assert app_uid(uid, user, name) == app


def test_jobs_are_grouped_in_order_of_submission():
    """Jobs without an app are apps of one."""
    late, early, single = job("2", app="array:1", submitted=5.0), job("3", app="array:1"), job("9", submitted=1.0)
    found = members_by_app([single, late, early])
    assert list(found.items()) == [("array:1", [early, late]), ("9", [single])]


def test_an_app_has_the_name_of_its_tag_or_of_its_first_member():
    """The name is for people."""
    assert app_name("app:ann/lr", [job("1")]) == "lr"
    assert app_name("array:1", [job("1", name="sweep")]) == "sweep"


def test_an_app_has_one_tuner():
    """Members without a tuner do not count; two different tuners are an error that names both."""
    one, same = job("1", tuner=settings(eta=2)), job("2", tuner=settings(eta=2.0))
    assert settings_of([job("3"), one, same]) == settings(eta=2)
    assert settings_of([job("3")]) is None
    with pytest.raises(TunerError, match="tuner=halving,eta=2 and tuner=halving,eta=3: name the same one"):
        settings_of([one, same, job("3", tuner=settings(eta=3))])
