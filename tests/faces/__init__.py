"""Each face as its strict clients see it, a folder for each dialect."""
