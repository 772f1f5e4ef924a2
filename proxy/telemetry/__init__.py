"""What happens to messages, as spans of OpenTelemetry."""
