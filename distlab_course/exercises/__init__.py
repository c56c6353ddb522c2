"""The exercises of the labs, one file for each; all.py names them.

Each file has, before the exercise that needs it:

    inputs     a function of (rank, number of ranks, case), named by what an answer is given
    a trial    `_try_...`, which calls an answer where a plain call would not be enough, and returns
               what is compared
    limits     a function of (number of ranks, elements, bytes of an element)

Trials that several labs share are in ddp_trials.py, and the workers that remote calls are tried on
in workers.py. What the decorators take is said in distlab/checking/exercises.py.
"""
