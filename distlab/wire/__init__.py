"""What crosses a process: messages, orders, values, the control channel, the rendezvous, times. Both sides run it."""
