"""Moves conversations from one backend to another, and says before what that will lose."""
