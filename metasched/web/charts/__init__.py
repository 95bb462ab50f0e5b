"""Charts as data for the templates: pure functions from numbers to positions in per cent and in pixels."""
