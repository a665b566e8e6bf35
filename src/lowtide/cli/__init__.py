"""One file per command: parse, call one pipeline function, show.

Delete this room and all still works from Python.
"""
