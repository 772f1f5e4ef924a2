"""The canonical model: events, commands, the laws of the log, and what is stored of them."""
