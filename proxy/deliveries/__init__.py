"""Takes what backends send by themselves, at `/from/{backend}`."""
