"""What a program would do on machines that are not there: one rank of each role runs, without data.

recorder.py, its group and its streams run in a process of their own; the rest runs on the
notebook's kernel.

    program -> predict.py -> recorder.py, which notes what one rank calls
            -> timeline.py, which finds when, with costs.py
            -> prediction.py, which says what that means
"""
