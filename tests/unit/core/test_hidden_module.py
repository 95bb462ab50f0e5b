"""Hidden modules."""

import importlib
import sys

import pytest

from metasched.core.hidden_module import hidden_module


def test_a_hidden_module_is_not_found_and_can_be_imported_later(tmp_path, monkeypatch):
    """Packages that import it meanwhile meet an ImportError, as where it is not installed."""
    (tmp_path / "hidden_for_a_test.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with hidden_module("hidden_for_a_test"), pytest.raises(ImportError):
        importlib.import_module("hidden_for_a_test")
    assert importlib.import_module("hidden_for_a_test").value == 1
    del sys.modules["hidden_for_a_test"]


def test_a_module_that_is_imported_already_stays():
    """What has it keeps it."""
    before = sys.modules["json"]
    with hidden_module("json"):
        assert importlib.import_module("json") is before
    assert sys.modules["json"] is before
