"""What every part of the proxy may use: errors, rows, clock, tasks, locks, logs, metrics."""
