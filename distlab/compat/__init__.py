"""The versions and the private parts of other libraries, one module for each; versions.py has their self-test."""
