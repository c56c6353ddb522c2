"""What judges: findings from what was seen on the ranks of each world.

Runs on the notebook's kernel, in pytest, or on a rank of a test; needs no torch. Called through
judge.py, whose first page has the questions in their order.

    the numbers of a world     wholes, matching, stages, hand_made, pairs, tolerances
    what a step's passes say   forward_passes
    what cannot be compared    hindrances, finiteness
    data                       rows, repeated_rows, rank_rows, orders, evaluations, dropouts
    replicas                   replicas, drifts, averages, uneven
    gradients with a factor    gradients, factors, reasons
    gradients without one      other_gradients, changed_gradients, mixtures, other_losses
    steps and losses           movements, loss_values
    words                      wording
"""
