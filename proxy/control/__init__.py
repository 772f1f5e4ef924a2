"""The control API, and the same without a server."""
