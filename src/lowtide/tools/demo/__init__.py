"""`lowtide demo`: every command once, on text that every machine has."""
