"""What passes between processes: messages, orders, values, the control channel, the rendezvous, times."""
