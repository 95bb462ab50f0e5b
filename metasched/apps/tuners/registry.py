"""The known tuners, and the tuner that a tag names."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from metasched.apps.tuners.curve import CurveStopping
from metasched.apps.tuners.halving import Halving
from metasched.apps.tuners.hyperband import Hyperband
from metasched.apps.tuners.median import MedianStopping
from metasched.apps.tuners.outside import Outside
from metasched.apps.tuners.tuner import Tuner, TunerError
from metasched.core.apps import TunerSettings
from metasched.core.validation_messages import explain, nearest

TUNERS: Mapping[str, type[Tuner]] = {
    tuner.name: tuner for tuner in (Halving, Hyperband, MedianStopping, CurveStopping, Outside)
}


def make_tuner(settings: TunerSettings) -> Tuner:
    """The tuner with the options of a tag.

    Raises:
        TunerError: no tuner has the name, or an option is unknown or out of range.
    """
    if (known := TUNERS.get(settings.name)) is None:
        raise TunerError(f"no tuner is named {settings.name!r}{nearest(settings.name, list(TUNERS))}")
    try:
        return known(known.Options.model_validate(dict(settings.options)))
    except ValidationError as error:
        raise TunerError("; ".join(explain(error, known.Options))) from error
