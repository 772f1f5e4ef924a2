"""The configuration: settings, what is wrong with them, and the matrix of what dialects can do."""
