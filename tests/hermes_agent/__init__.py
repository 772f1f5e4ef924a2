"""Hermes Agents that are watched and gated by their hooks."""
