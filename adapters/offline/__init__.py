"""What is done with recorded bytes and logs: translate, verify, compare, replay, move."""
