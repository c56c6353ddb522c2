"""What passes between processes, and how: it runs on both sides.

Messages, orders, values, recordings, the control channel and the rendezvous.
"""
