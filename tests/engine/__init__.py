"""The Engine codecs by themselves."""
