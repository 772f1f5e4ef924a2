"""What concerns the whole server, whichever dialects are spoken on its sides."""
