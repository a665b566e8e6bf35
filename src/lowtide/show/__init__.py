"""What people see of a run: a bar on a terminal, plain lines elsewhere. Reads events, decides nothing."""
