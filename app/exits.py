"""Exit codes of the command line.

DONE: done. FAILED: the work itself failed (a trace that does not hold, a run that ended in an error).
MISUSED: the command could not be carried out as given (a bad value, a missing file, a model that cannot be
loaded). INTERRUPTED: by Ctrl-C.
"""

DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130
