"""Tables, charts and sentences. They draw what they are given, and run nothing."""
