"""One log for many readers: the hub publishes what is stored, streams read it."""
