"""distlab beside its peers, as ratios in one run: `make bench`."""
