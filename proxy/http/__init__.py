"""The edge of HTTP: keys of requests, bodies, malformed requests, connections."""
