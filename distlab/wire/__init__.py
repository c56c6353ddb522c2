"""What the notebook and the ranks say to each other: serialization, rendezvous, the control channel, source lines."""
