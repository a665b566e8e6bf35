"""`compare` and `demo`: what is built from the commands themselves."""
