"""What `compare` does with one way: the sample it gets, the box it runs in, how it grows, how that is told."""
