"""The whole way: an eve client, Dragoman, a scripted Engine, over real connections."""
