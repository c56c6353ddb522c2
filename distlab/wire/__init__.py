"""What passes between processes: messages, orders, values, recordings, the control channel, the
rendezvous, times.
"""
