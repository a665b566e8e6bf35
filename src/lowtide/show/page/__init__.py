"""The page of a run. In: its journal, read once. Out: one HTML file that needs nothing else. Holds a few MB.

read_run.py → facts of the run → charts.py (what is drawn) → figures.py (how) → document.py → write_page.py
"""
