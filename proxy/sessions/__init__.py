"""The sessions of a server: found, made, kept in memory, routed and deleted."""
