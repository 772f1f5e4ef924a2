"""The Engine face end to end: a strict Engine client, the real application, a scripted Engine."""
