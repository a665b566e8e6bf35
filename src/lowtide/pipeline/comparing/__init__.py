"""What `compare` does with one way: the sample, the box it runs in, how it grows, and the result in words."""
