"""How two logs differ, and which differences mean nothing."""
