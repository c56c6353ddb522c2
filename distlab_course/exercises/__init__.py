"""The exercises of the labs, one file for each; all.py names them."""
