"""What looks at a training program while it runs, and fills a `records.RankRecord`.

Runs on every rank; needs torch. Called through entry.py.

    where it begins            entry, surroundings, watch; state (what all share), patching
    what the program calls     forwards, called_modules, wrappers, data_rows, communication
    what trains                losses, steps, own_gradients, randomness, samplers, perturbing
    parameters                 naming, places, flat_parameters, seen_tensors, sketches
    lines                      seen_lines
"""
