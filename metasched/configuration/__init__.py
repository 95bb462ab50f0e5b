"""The configuration file: parsed, checked, and explained key by key."""
