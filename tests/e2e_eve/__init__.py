"""Dragoman in front of scripted eve servers of both generations."""
