"""Programs for who works on this project; nothing of them is installed."""
