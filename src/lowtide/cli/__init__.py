"""One file per command: parse, call one function, show.

Delete this room and all still works from Python.
"""
