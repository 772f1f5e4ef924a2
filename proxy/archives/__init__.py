"""Sessions on their way from one installation to another, in files."""
