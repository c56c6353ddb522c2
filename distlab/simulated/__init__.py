"""A cluster you do not have: the learner's program runs on real ranks, and virtual clocks say how long it takes.

network.py describes links, hosts and devices. backend.py is the process group that notes what each rank does (notes.py,
events.py). From these notes simulation.py finds every rank's virtual time, with the steps of collectives from
collectives.py. The model is written down in simulation.py.
"""
