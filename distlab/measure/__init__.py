"""Timing, sweeps, traces, and the probe of what works here."""
