"""Segments under one manifest, and the engines that search their rows: base.py holds the promise."""
