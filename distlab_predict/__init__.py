"""What a program would do on machines that are not there: one rank of each role runs it, without
data.

recorder.py and its group and streams run in a process of their own; the rest runs on the notebook's
kernel.

    program -> predict.py -> recorder.py, which notes what one rank calls
            -> timeline.py, which finds when, with costs.py -> prediction.py, which says what it
              means
"""
