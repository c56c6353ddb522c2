"""Small programs for torchrun, which know nothing of distlab; test_programs.py runs them."""
