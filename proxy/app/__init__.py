"""The application: all routes, health and metrics, and the server that runs it."""
