"""`breakpoint()` on ranks.

console.py is the debugger on a rank, turns.py the person who types, on the notebook's kernel.
"""
