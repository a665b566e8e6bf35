"""`lowtide compare`: every baseline, and lowtide, alone in a box with a sample of the user's own text."""
