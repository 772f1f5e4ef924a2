"""The program around the codecs: the only package that does IO."""

__version__ = "0.1.0"
