"""Every interaction and command in all nine pairs of Herm, eve and Engine."""
