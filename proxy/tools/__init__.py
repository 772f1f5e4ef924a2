"""Programs beside the server: record, replay, compare, verify, demo."""
