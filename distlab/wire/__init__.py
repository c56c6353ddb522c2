"""What passes between processes, and how: it runs on both sides.

Messages, orders, values, recordings, the control channel, the rendezvous, and the times of a wait.
"""
