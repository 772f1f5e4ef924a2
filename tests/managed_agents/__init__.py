"""Tests of the managed-agents dialect."""
